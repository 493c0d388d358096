"""The trace that comes with the package: what it holds, and that its replay takes the time that its runs took."""

from pathlib import Path

import polars as pl
import pytest

from pearl_sim.compare import verdict
from pearl_sim.cost import EmpiricalCost
from pearl_sim.drivers.kernel import tally
from pearl_sim.policies import POLICIES
from pearl_sim.trace import load

TRACE = Path(__file__).parents[1] / "traces" / "bundled_cpu"


@pytest.mark.parametrize("source", ["ar", "sd-2", "sd-4", "sd-8", "pearl-2", "pearl-4", "pearl-8"])
def test_replay_is_as_fast_as_the_recorded_runs_to_3_percent(source):
    """Data against data, nothing is timed here: tokens/s of the run's own steps, first start to last stop."""
    trace = load(TRACE)
    name, _, gamma = source.partition("-")
    policy = POLICIES[name](int(gamma or 0))
    requests = trace.workload(None, None)
    simulated = tally(policy, requests, EmpiricalCost(trace=TRACE).timing(policy), 0, None).totals
    runs = trace.steps.filter(pl.col("source") == source).group_by("request")
    recorded_ns = runs.agg(ns=pl.col("stop_ns").max() - pl.col("start_ns").min())["ns"].sum()
    assert sum(request.time_ns for request in simulated) == pytest.approx(recorded_ns, rel=0.03)
    # And exactly as many target forwards, prefill aside.
    forwards = trace.steps.filter(pl.col("source") == source, pl.col("role") == "target", pl.col("context") > 0)
    assert sum(request.forwards for request in simulated) == len(forwards)


FIDELITY = TRACE.parent / "bundled_fidelity"


def test_the_measured_fidelity_is_what_the_docs_say_and_within_its_bounds():
    """Predictions against runs, both recorded side by side: 3 % in the median, 8 % at worst; 5 % where left out."""
    pytest.importorskip("torch", reason="needs the extra: models")
    from pearl_sim import fidelity

    found = fidelity.judge(FIDELITY)
    whole, part = (of_cost for _, of_cost in found.group_by("cost", maintain_order=True))
    left_out = part.filter(~(pl.col("policy").is_in(["ar", "sd", "pearl"]) & pl.col("gamma").is_in([0, 2, 8])))
    assert (len(whole), len(left_out)) == (21, 16)
    assert verdict(whole).rounds_equal
    assert verdict(whole).median_error < 0.03
    assert verdict(whole).worst_error < 0.08
    assert verdict(left_out).median_error < 0.05
    page = (TRACE.parents[1] / "docs" / "fidelity.md").read_text(encoding="utf-8")
    for name, cells in (("everything profiled: 21 runs", whole), ("16 runs left out of the profile", left_out)):
        median, worst = (f"{100 * error:.1f} %" for error in verdict(cells)[:2])
        assert f"| {name} | **{median}** | {worst} | all equal |" in page


def test_the_pair_accepts_what_its_page_says():
    tokens = load(TRACE).tokens
    assert (tokens["run"] > 0).mean() == pytest.approx(0.859, abs=0.01)
    assert tokens["alpha"].mean() == pytest.approx(0.877, abs=0.01)
