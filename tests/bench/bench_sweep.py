"""Sweeps over a recorded trace of 100,200 tokens, into Parquet, by one process: the unit is one design point."""

import pytest
from made import PRICES, make_trace, read_scenario

from pearl_sim import workers
from pearl_sim.sweep import run

AFFINE = """
cost.model = "affine"
cost.target.per_token = "20 us"
policy = { names = ["pearl"], gamma = 4 }
sweep.cost.draft.base = { start = "0.2 ms", stop = "4 ms", num = 20, scale = "log" }
sweep.cost.target.base = { start = "4 ms", stop = "80 ms", num = 20, scale = "log" }
"""
SLOPES = """
cost.draft.per_context_token = "3 ns"
cost.target.per_context_token = "40 ns"
"""
SWEPT_SLOPES = """
sweep.cost.draft.per_context_token = { start = "1 ns", stop = "9 ns", num = 5 }
sweep.cost.target.per_context_token = { start = "10 ns", stop = "80 ns", num = 8 }
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
    swept(AFFINE + SLOPES)


def bench_points_with_growing_context_and_contention(swept):
    swept(AFFINE.replace("num = 20", "num = 5") + SLOPES + "cost.contention = 1.5")


def bench_points_each_with_slopes_of_its_own(swept):
    fixed = AFFINE.partition("sweep")[0] + 'cost.draft.base = "1 ms"\ncost.target.base = "9 ms"\n'
    swept(fixed + SWEPT_SLOPES)


def bench_points_with_luck(swept):
    spread = "cost.draft.spread = [-0.1, 0.1]\ncost.target.spread = [-0.1, 0.1]\n"
    swept(AFFINE.replace("num = 20", "num = 5") + SLOPES + spread)


def bench_points_of_gamma_alone(swept):
    swept('cost = { model = "constant", draft = "1 ms", target = "9 ms" }\npolicy.names = ["pearl"]\n'
          "sweep.policy.gamma = { start = 1, stop = 40, num = 40 }")  # fmt: skip


def bench_starting_a_second_process(per_unit, monkeypatch):
    monkeypatch.setattr(workers, "ALONE_S", 0)
    per_unit(lambda: list(workers.here(abs, range(2), 2)), 1, rounds=3)
