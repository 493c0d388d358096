"""The trace that comes with the package: what it holds, and that its replay takes the time that its runs took."""

from pathlib import Path

import polars as pl
import pytest

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
    requests = trace.replay(None, None)
    simulated = tally(policy, requests, EmpiricalCost(trace=TRACE).timing(policy), 0, None).totals
    runs = trace.steps.filter(pl.col("source") == source).group_by("request")
    recorded_ns = runs.agg(ns=pl.col("stop_ns").max() - pl.col("start_ns").min())["ns"].sum()
    assert sum(request.time_ns for request in simulated) == pytest.approx(recorded_ns, rel=0.03)
    # And exactly as many target forwards, prefill aside.
    forwards = trace.steps.filter(pl.col("source") == source, pl.col("role") == "target", pl.col("context") > 0)
    assert sum(request.forwards for request in simulated) == len(forwards)


def test_the_pair_accepts_what_its_page_says():
    tokens = load(TRACE).tokens
    assert (tokens["run"] > 0).mean() == pytest.approx(0.859, abs=0.01)
    assert tokens["alpha"].mean() == pytest.approx(0.877, abs=0.01)
