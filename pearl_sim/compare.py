"""Simulated against real: the same requests under the same policies, round by round, then in time, and where it errs.

A trace with timed runs is what really happened, by the engine or with hardware in the loop.  The simulator is given
the trace's acceptance and some cost.  Rounds must be equal, all of them; times are compared over the requests whose
rounds are.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from pearl_sim.cost import Cost
from pearl_sim.drivers.kernel import simulate
from pearl_sim.errors import InputError
from pearl_sim.policies import POLICIES, of_label
from pearl_sim.recommend import RESAMPLES, resampled, tail
from pearl_sim.recorded import recorded
from pearl_sim.timeline import Timeline
from pearl_sim.trace import Trace

SEED = 0
"""Of simulated latencies."""

PARTS = ("prefill", "draft alone", "target alone", "both", "hand-over")
"""Where the time of a request goes: prefill; each kind of round, by its slower model; what rounds take beyond that."""

COLUMNS = {
    "policy": pl.String,
    "gamma": pl.Int64,
    "cost": pl.String,
    "requests": pl.Int64,
    "equal_requests": pl.Int64,
    "rounds": pl.Int64,
    "real_tokens_per_s": pl.Float64,
    "simulated_tokens_per_s": pl.Float64,
    "error": pl.Float64,
    "error_low": pl.Float64,
    "error_high": pl.Float64,
    "round_error_p5": pl.Float64,
    "round_error_p50": pl.Float64,
    "round_error_p95": pl.Float64,
    "tail_error": pl.Float64,
    **dict.fromkeys(PARTS, pl.Float64),
}
"""The columns of a comparison, a row a policy and gamma.

cost:            what the simulator was told about time.
equal_requests:  requests in which the real run did the simulator's rounds, every one; the rest is left out below.
error:           simulated over real tokens/s, less 1, and its 95 % bootstrap interval over requests.
round_error_pX:  quantiles over rounds of simulated over real duration, less 1.
tail_error:      the same of the 99th percentile of round durations.
prefill, ...:    simulated less real time of that part, as a share of all real time; they add up to the error of time.
"""


def compare(run: Trace, cost: Cost, called: str, labels: Sequence[str] | None = None) -> pl.DataFrame:
    """Return COLUMNS for the timed runs of a trace that `labels` name, such as pearl-4; left out, for all of them.

    `called` is what to write into the column cost.

    InputError if the trace has no such run, or `cost` cannot price it.
    """
    known = [source for source in run.steps["source"].unique(maintain_order=True) if of_label(source)]
    missing = [label for label in labels or () if label not in known]
    if missing or not known:
        what = f"no timed run of {missing[0]}" if missing else "no timed runs"
        raise InputError(run.path / "steps.parquet", f"has {what}; it has: {', '.join(known) or 'none'}")
    return pl.DataFrame([_cell(run, cost, called, label) for label in labels or known], COLUMNS, orient="row")


class Verdict(NamedTuple):
    """The median and the largest size of the errors (NaN: nothing could be compared), and whether all rounds agree."""

    median_error: float
    worst_error: float
    rounds_equal: bool


def verdict(found: pl.DataFrame) -> Verdict:
    """Return what a comparison comes to."""
    sizes = found["error"].drop_nulls().abs().to_numpy()
    median, worst = (float(np.median(sizes)), float(sizes.max())) if len(sizes) else (math.nan, math.nan)
    return Verdict(median, worst, bool((found["equal_requests"] == found["requests"]).all()))


def _cell(run: Trace, cost: Cost, called: str, source: str) -> tuple[object, ...]:
    named = of_label(source)
    assert named, "a label that is no policy's was let through"
    name, gamma = named
    policy, requests = POLICIES[name](gamma), run.workload(None, None)
    simulated = simulate(policy, requests, cost.timing(policy), SEED)
    names = run.requests["request"]
    ran = [recorded(run, source, names[i], timeline) for i, timeline in enumerate(simulated)]
    equal = [i for i, timeline in enumerate(ran) if len(timeline) == len(simulated[i])]
    if not equal:
        return (name, gamma, called, len(requests), 0, 0, *[None] * (len(COLUMNS) - 6))
    sides = [ran[i] for i in equal], [simulated[i] for i in equal]
    tokens = np.array([requests[i].limit for i in equal], np.float64)
    time_s = np.array([[(steps[-1].stop - steps[0].start) / 1e9 for steps in side] for side in sides])
    speeds = tokens.sum() / time_s.sum(axis=1)
    low = high = None
    if len(equal) > 1:
        drawn, tails = resampled(tokens, time_s, RESAMPLES), tail(len(equal))
        low, high = np.quantile(drawn[:, 1] / drawn[:, 0] - 1, [tails, 1 - tails]).tolist()
    real_ns, told_ns = (np.array([s.stop - s.start for steps in side for s in steps[1:]], np.int64) for side in sides)
    by_round, tail_error = [None] * 3, None
    if len(real_ns):
        by_round = np.quantile(told_ns / real_ns - 1, [0.05, 0.5, 0.95]).tolist()
        tail_error = float(np.quantile(told_ns, 0.99) / np.quantile(real_ns, 0.99) - 1)
    real_parts, told_parts = (np.sum([_parts(steps) for steps in side], axis=0) for side in sides)
    return (
        name,
        gamma,
        called,
        len(requests),
        len(equal),
        len(real_ns),
        *speeds.tolist(),
        float(speeds[1] / speeds[0] - 1),
        low,
        high,
        *by_round,
        tail_error,
        *((told_parts - real_parts) / 1e9 / time_s[0].sum()).tolist(),
    )


def _parts(timeline: Timeline) -> list[int]:
    """Return the nanoseconds of PARTS in a timeline."""
    spent = dict.fromkeys(PARTS, 0)
    spent["prefill"] = timeline[0].stop - timeline[0].start
    for step in timeline[1:]:
        longer = max(step.draft_ns, step.score_ns)
        alone = "draft alone" if step.round.draft else "target alone"
        spent["both" if step.round.draft and step.round.score else alone] += longer
        spent["hand-over"] += step.stop - step.start - longer
    return list(spent.values())
