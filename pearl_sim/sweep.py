"""A scenario simulated: every design point under every policy, one row each, with what theory says beside it."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from pearl_sim import theory
from pearl_sim.acceptance import Iid
from pearl_sim.axes import column, number
from pearl_sim.cost import ConstantCost, Cost
from pearl_sim.drivers import kernel, sim
from pearl_sim.errors import InputError
from pearl_sim.judge import Request
from pearl_sim.metrics import Totals, ratio, standard_errors
from pearl_sim.policies import autoregressive
from pearl_sim.rules import Policy
from pearl_sim.scenario import Point, Scenario
from pearl_sim.timing import Timing, mean_round_ns, prefill_parts

Row: TypeAlias = dict[str, str | int | float | None]

DRIVERS = {"sim": sim.tally, "kernel": kernel.tally}
"""The simulators, by name.  Both are exact; the kernel is faster."""

MEASURES = (
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    "ms_per_token",
    "speedup",
    "speedup_low",
    "speedup_high",
    "tokens_per_target_forward",
    "tokens_per_correction",
    "draft_busy",
    "target_busy",
    "wasted_drafts",
    "unknown_rounds",
    "theory_tokens_per_s",
    "theory_deviation",
    "steady_tokens_per_s",
    "tokens_per_t_draft",
    "steady_tokens_per_t_draft",
    "note_tokens_per_t_draft",
)
"""The columns of a row after policy, gamma and the swept keys, all Float64; docs/results.md explains each."""

NOTE = {"sd": theory.note_speculative_speed, "pearl": theory.note_pearl_speed}


class Results(NamedTuple):
    """What a scenario's simulation found.

    rows:   a row a point and policy: policy, gamma, the swept keys, MEASURES.
    depths: policy, gamma, the swept keys, depth, checked, accepted, acceptance (accepted / checked).
    driver: which simulator it was, "sim" or "kernel"; "kernel, sim" where some points needed the other.
    """

    scenario: Scenario
    rows: pl.DataFrame
    depths: pl.DataFrame
    driver: str


def run(scenario: Scenario, on_point: Callable[[], object] = lambda: None, driver: str | None = None) -> Results:
    """Return the results of every point, in order; `on_point` is called after each.

    The results do not depend on `driver`.  None takes the fastest that is exact: the kernel, unless a point's times
    could pass the end of its clock.  InputError if the kernel is asked for such a point.
    """
    rows: list[Row] = []
    depths: list[Row] = []
    used = set()
    for swept, point in scenario.points:
        place: Row = {column(key, value): number(value) for key, value in swept.items()}
        chosen = driver or "kernel"
        try:
            found = _run_point(point, chosen)
        except OverflowError as error:
            if driver:
                raise InputError(f"{scenario.name}, driver {driver}", f"{error}; use sim") from None
            chosen = "sim"
            found = _run_point(point, chosen)
        used.add(chosen)
        for row, by_depth in found:
            rows.append({**row, **place})
            depths += [{**depth, **place} for depth in by_depth]
        on_point()
    # A swept key is whole only if all its values are.
    swept_columns = {
        name: pl.Int64 if all(isinstance(row[name], int) for row in rows) else pl.Float64 for name in place
    }
    leading = {"policy": pl.String, "gamma": pl.Int64, **swept_columns}
    counts = {"depth": pl.Int64, "checked": pl.Int64, "accepted": pl.Int64, "acceptance": pl.Float64}
    return Results(
        scenario,
        pl.DataFrame(rows, {**leading, **dict.fromkeys(MEASURES, pl.Float64)}, strict=False),
        pl.DataFrame(depths, {**leading, **counts}, strict=False),
        ", ".join(sorted(used)),
    )


def _run_point(point: Point, driver: str) -> list[tuple[Row, list[Row]]]:
    """Return the row and the depth rows of every policy at one point."""
    requests, censored = point.requests(), point.censored()
    lengths = tuple((request.prompt_tokens, request.limit) for request in requests)
    baseline = _baseline(point.cost, lengths, point.seed, driver)
    found = []
    for name, policy in point.policy.chosen().items():
        timing = point.cost.timing(policy)
        sums, depths, unknown = DRIVERS[driver](policy, requests, timing, point.seed, censored)
        row: Row = {"policy": name, "gamma": policy.gamma, **_measured(sums, baseline), "unknown_rounds": unknown}
        row |= _theory(name, policy, point, timing, sums)
        by_depth: list[Row] = [
            {
                "policy": name,
                "gamma": policy.gamma,
                "depth": depth,
                "checked": checked,
                "accepted": accepted,
                "acceptance": accepted / checked,
            }
            for depth, checked, accepted in depths
        ]
        found.append((row, by_depth))
    return found


@lru_cache(maxsize=4)
def _baseline(cost: Cost, lengths: tuple[tuple[int, int], ...], seed: int, driver: str) -> list[Totals]:
    """Return what autoregressive decoding takes for requests of these (prompt, output) lengths.

    It checks no drafts, so points that differ only in acceptance or policy share the answer.
    """
    requests = [Request(prompt, limit, np.zeros(limit, np.int64)) for prompt, limit in lengths]
    return DRIVERS[driver](autoregressive(), requests, cost.timing(autoregressive()), seed, None).totals


def _measured(sums: Sequence[Totals], baseline: Sequence[Totals]) -> Row:
    time_s = [request.time_ns / 1e9 for request in sums]
    tokens = [request.tokens for request in sums]
    speed = ratio(tokens, time_s)
    speedup = ratio([request.time_ns / 1e9 for request in baseline], time_s)
    decoded = sum(tokens) - len(tokens)
    forwards, corrections, drafted = (
        sum(getattr(request, name) for request in sums) for name in ("forwards", "corrections", "drafted")
    )
    return {
        "tokens_per_s": speed.mean,
        "tokens_per_s_low": _known(speed.low),
        "tokens_per_s_high": _known(speed.high),
        "ms_per_token": 1000 / speed.mean,
        "speedup": speedup.mean,
        "speedup_low": _known(speedup.low),
        "speedup_high": _known(speedup.high),
        "tokens_per_target_forward": decoded / forwards if forwards else None,
        "tokens_per_correction": decoded / corrections if corrections else None,
        "draft_busy": sum(request.draft_ns for request in sums) / 1e9 / sum(time_s),
        "target_busy": sum(request.score_ns for request in sums) / 1e9 / sum(time_s),
        "wasted_drafts": 1 - sum(request.kept for request in sums) / drafted if drafted else None,
    }


def _theory(name: str, policy: Policy, point: Point, timing: Timing, sums: Sequence[Totals]) -> Row:
    """Return what closed forms say, where the law is known and no round's time depends on context."""
    row: Row = {}
    if isinstance(point.cost, ConstantCost):
        t_draft_s = point.cost.draft / 1e9
        row["tokens_per_t_draft"] = sum(r.tokens for r in sums) / sum(r.time_ns for r in sums) * 1e9 * t_draft_s
    law = point.law
    durations = _durations(policy, timing)
    if law is None or durations is None:
        return row
    chains = law.chains()
    tokens, time_ns = sums[0].tokens, [request.time_ns for request in sums]
    prefill = max(prefill_parts(policy, timing, point.workload.prompt_tokens or 0))
    expected = prefill + theory.request_time(policy, chains, durations.__getitem__, tokens - 1)
    steady = theory.steady_speed(policy, chains, durations.__getitem__) * 1e9
    row |= {
        "theory_tokens_per_s": tokens / expected * 1e9,
        # Slower than theory is a positive deviation of the time, and a negative one of the speed.
        "theory_deviation": _known(0.0 - standard_errors(time_ns, expected)),
        "steady_tokens_per_s": steady,
    }
    if isinstance(point.cost, ConstantCost):
        row["steady_tokens_per_t_draft"] = steady * t_draft_s
        if point.reading_note and isinstance(law, Iid) and name in NOTE:
            t_target_s = point.cost.target / 1e9
            row["note_tokens_per_t_draft"] = _known(
                NOTE[name](law.alpha, policy.gamma, t_draft_s, t_target_s) * t_draft_s
            )
    return row


def _durations(policy: Policy, timing: Timing) -> dict[theory.Work, float] | None:
    """Return the mean duration in ns of each kind of round, or None if one depends on context."""
    kinds = [work for work, _ in theory.visits(policy, 2)]
    means = {work: mean_round_ns(timing, work.draft, work.score) for work in kinds}
    known = {work: mean for work, mean in means.items() if mean is not None}
    return known if len(known) == len(means) else None


def _known(value: float) -> float | None:
    """Return `value`, or None where it is without bound or there are too few requests to tell."""
    return value if math.isfinite(value) else None
