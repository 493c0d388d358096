"""Sweeps over a recorded trace of 100,200 tokens, into Parquet, by one process: the unit is one design point."""

import pytest
from made import GROWING, PRICES, make_trace, read_scenario

from pearl_sim import workers
from pearl_sim.sweep import run

SOME = GROWING.format(gammas=2, drafts=20, targets=20)
LUCK = "cost.draft.spread = [-0.1, 0.1]\ncost.target.spread = [-0.1, 0.1]\n"
SWEPT_SLOPES = """
cost = { model = "affine", draft.base = "1 ms", target.base = "9 ms" }
policy = { names = ["pearl"], gamma = 4 }
sweep.cost.draft.per_context_token = { start = "1 ns", stop = "9 ns", num = 20 }
sweep.cost.target.per_context_token = { start = "10 ns", stop = "80 ns", num = 20 }
"""


@pytest.fixture
def swept(per_unit, tmp_path):
    """Return a function that benchmarks a sweep over these costs, into an empty directory each time."""
    make_trace(tmp_path / "trace")

    def bench(text):
        scenario = read_scenario(tmp_path, text)
        tries = iter(range(99))
        per_unit(lambda: run(scenario, out=tmp_path / str(next(tries))), len(scenario), rounds=3)

    return bench


def bench_points_that_differ_in_price_only(swept):
    swept(PRICES.format(gammas=4, drafts=50, targets=100))


def bench_points_with_growing_context(swept):
    swept(GROWING.format(gammas=4, drafts=50, targets=100))


def bench_points_with_growing_context_and_contention(swept):
    swept("cost.contention = 1.5\n" + SOME)


def bench_points_each_with_slopes_of_its_own(swept):
    swept(SWEPT_SLOPES)


def bench_points_with_growing_context_and_luck(swept):
    swept(LUCK + GROWING.format(gammas=2, drafts=5, targets=5))


def bench_points_of_gamma_alone(swept):
    swept('cost = { model = "constant", draft = "1 ms", target = "9 ms" }\npolicy.names = ["pearl"]\n'
          "sweep.policy.gamma = { start = 1, stop = 40, num = 40 }")  # fmt: skip


def bench_starting_a_second_process(per_unit, monkeypatch):
    monkeypatch.setattr(workers, "ALONE_S", 0)
    per_unit(lambda: list(workers.here(abs, range(2), 2)), 1, rounds=3)
