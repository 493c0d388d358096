"""Design points evaluated: a row a point and policy, and how deep their chains went."""

from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pearl_sim import theory
from pearl_sim.acceptance import Iid, Law
from pearl_sim.metrics import ratios, standard_errors
from pearl_sim.point import Point
from pearl_sim.rules import Policy
from pearl_sim.sample import Known, Sample, samples
from pearl_sim.scenario import Scenario

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

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


class Evaluated(NamedTuple):
    """Some points' rows.

    rows:   policy, gamma, the swept keys, MEASURES, and `driver`, which simulator it was.
    depths: policy, gamma, the swept keys but those of the cost, depth, checked, accepted, acceptance (their ratio);
            once for all points that differ in cost only, with the first of them.
    """

    rows: pl.DataFrame
    depths: pl.DataFrame


def evaluate(scenario: Scenario, points: range, driver: str | None = None) -> Evaluated:
    """Return the rows of consecutive points, in order.

    `driver` None takes the kernel, and SimPy at points whose times could pass the end of the kernel's clock; where
    the kernel is asked for such a point, OverflowError.
    """
    places = scenario.places(np.arange(points.start, points.stop))
    names = scenario.point(points.start).policy.names
    cells = {name: np.full((len(points), len(names)), np.nan) for name in MEASURES}
    gammas, drivers = np.zeros((len(points), len(names)), np.int64), np.full((len(points), len(names)), "kernel")
    depths = [_depths(scenario, places, [])]
    for members in _sharing_a_walk(scenario, places, len(points)):
        point = scenario.point(points[members[0]])
        policies = point.policy.chosen()
        gammas[members] = [policy.gamma for policy in policies.values()]
        for some, used, (baseline, *found) in samples(scenario, points, places, members, driver):
            drivers[some] = used
            for at, (name, (sample, known)) in enumerate(zip(names, found, strict=True)):
                columns = _measured(sample, baseline[0]) | _theory(name, policies[name], point, sample, known)
                for measure, values in columns.items():
                    cells[measure][some, at] = values
            chains = [
                (name, policy.gamma, *depth)
                for (name, policy), (sample, _) in zip(policies.items(), found, strict=True)
                for depth in sample.depths
            ]
        if all(at[members[0]] == 0 for key, at in places.items() if _is_cost(key)):
            depths.append(_depths(scenario, {key: at[members[:1]] for key, at in places.items()}, chains))
    for values in cells.values():
        values[~np.isfinite(values)] = np.nan  # without bound, or too few requests to tell
    rows = pl.DataFrame(
        [
            pl.Series("policy", np.tile(names, len(points))),
            pl.Series("gamma", gammas.ravel()),
            *(pl.Series(name, np.repeat(numbers, len(names))) for name, numbers in scenario.swept(places).items()),
            *(pl.Series(name, values.ravel(), nan_to_null=True) for name, values in cells.items()),
            pl.Series("driver", drivers.ravel()),
        ]
    )
    return Evaluated(rows, pl.concat(depths))


def _sharing_a_walk(scenario: Scenario, places: dict[str, Integers], count: int) -> list[Integers]:
    """Return which of `count` points differ in price only: groups of them, each in order."""
    group = np.zeros(count, np.int64)
    for key, at in places.items():
        if key not in scenario.prices:
            group = group * len(scenario.axes[key]) + at
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def _is_cost(key: str) -> bool:
    """Return whether a swept key cannot change what is accepted."""
    return key.startswith("cost.")


def _depths(
    scenario: Scenario, places: dict[str, Integers], chains: list[tuple[str, int, int, int, int]]
) -> pl.DataFrame:
    """Return the depths' rows at one place; `chains` holds policy, gamma, depth, checked, accepted."""
    counts = dict.fromkeys(("gamma", "depth", "checked", "accepted"), pl.Int64)
    table = pl.DataFrame(chains, {"policy": pl.String, **counts}, orient="row")
    apart = {key: at[:1] for key, at in places.items() if not _is_cost(key)}
    swept = [pl.lit(pl.Series(name, numbers)).first().alias(name) for name, numbers in scenario.swept(apart).items()]
    ratio_of = (pl.col("accepted") / pl.col("checked")).alias("acceptance")
    return table.select("policy", "gamma", *swept, "depth", "checked", "accepted", ratio_of)


def _measured(sample: Sample, baseline: Sample) -> dict[str, Floats | float]:
    """Return the measures, [point] or the same at every point; NaN where there is none."""
    time_s, baseline_s = (np.asarray(some.time_ns / 1e9, float) for some in (sample, baseline))
    speed, speedup = ratios(sample.tokens, time_s), ratios(baseline_s, time_s)
    decoded, total_s = int(sample.tokens.sum()) - len(sample.tokens), time_s.sum(axis=1)
    return {
        "tokens_per_s": speed.mean,
        "tokens_per_s_low": speed.low,
        "tokens_per_s_high": speed.high,
        "ms_per_token": 1000 / speed.mean,
        "speedup": speedup.mean,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "tokens_per_target_forward": decoded / sample.forwards if sample.forwards else np.nan,
        "tokens_per_correction": decoded / sample.corrections if sample.corrections else np.nan,
        "draft_busy": np.asarray(sample.draft_ns / 1e9, float) / total_s,
        "target_busy": np.asarray(sample.score_ns / 1e9, float) / total_s,
        "wasted_drafts": 1 - sample.kept / sample.drafted if sample.drafted else np.nan,
        "unknown_rounds": np.nan if sample.unknown_rounds is None else sample.unknown_rounds,
    }


def _theory(name: str, policy: Policy, point: Point, sample: Sample, known: Known) -> dict[str, Floats | float]:
    """Return what closed forms say, where the law is known and no round's time depends on context."""
    row: dict[str, Floats | float] = {}
    _, prefill_ns, t_draft_s, t_target_s = known
    if t_draft_s is not None:
        total_ns = np.asarray(sample.time_ns.sum(axis=1), float)
        row["tokens_per_t_draft"] = int(sample.tokens.sum()) / total_ns * 1e9 * t_draft_s
    if point.law is None:
        return row
    rounds, steady = _expected(policy, point.law, int(sample.tokens[0]) - 1)
    durations = {work: ns for work in steady if (ns := known.round_ns(work)) is not None}
    if len(durations) < len(steady):
        return row
    expected = prefill_ns() + sum(mean * durations[work] for work, mean in rounds.items())
    per_s = 1e9 / sum(mean * durations[work] for work, mean in steady.items())
    row |= {
        "theory_tokens_per_s": int(sample.tokens[0]) / expected * 1e9,
        # Slower than theory is a positive deviation of the time, and a negative one of the speed.
        "theory_deviation": 0.0 - standard_errors(sample.time_ns, expected),
        "steady_tokens_per_s": per_s,
    }
    if t_draft_s is not None and t_target_s is not None:
        row["steady_tokens_per_t_draft"] = per_s * t_draft_s
        if point.reading_note and isinstance(point.law, Iid) and name in NOTE:
            pairs = zip(t_draft_s.tolist(), t_target_s.tolist(), strict=True)
            note = [NOTE[name](point.law.alpha, policy.gamma, *pair) for pair in pairs]
            row["note_tokens_per_t_draft"] = np.array(note) * t_draft_s
    return row


@lru_cache(maxsize=64)
def _expected(policy: Policy, law: Law, tokens: int) -> tuple[dict[theory.Work, float], dict[theory.Work, float]]:
    """Return the mean number of rounds of each kind, for so many tokens after prefill and per token in the long run."""
    chains = law.chains()
    return theory.request_rounds(policy, chains, tokens), theory.steady_rounds(policy, chains)
