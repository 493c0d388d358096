"""From timelines to the numbers people ask for, each with one meaning.

tokens_per_s               output tokens over time, prefill included
tokens_per_target_forward  tokens decoded after prefill, a target forward of decoding
tokens_per_correction      the same, a correction (a draft token that was rejected); null if there was none
draft_busy, target_busy    share of the time that the model was running
unknown_rounds             share of target forwards whose outcome a truncated record cannot tell
wasted_drafts              share of the drafted tokens that never became output; null if none was drafted
speedup                    time of autoregressive decoding over time, on the same requests
conditional acceptance     of the drafts checked at depth d of their chain, the share accepted

Output is cut to the request's limit; time runs to the end of its last round.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pearl_sim.judge import Censored, Request
from pearl_sim.rules import candidates
from pearl_sim.timeline import Timeline

Floats: TypeAlias = NDArray[np.float64]


class Totals(NamedTuple):
    """What one request took, prefill included in times and in `tokens` only."""

    tokens: int
    time_ns: int
    draft_ns: int
    score_ns: int
    forwards: int
    drafted: int
    kept: int
    corrections: int


class Tally(NamedTuple):
    """What is counted on the timelines of one policy; both simulators give it.

    depths:         acceptance_by_depth.
    unknown_rounds: None where no record is truncated.
    """

    totals: list[Totals]
    depths: list[tuple[int, int, int]]
    unknown_rounds: float | None


class Interval(NamedTuple):
    """An estimate and its 95 % confidence interval; the interval is NaN for fewer than two requests."""

    mean: float
    low: float
    high: float


class Intervals(NamedTuple):
    """Many such estimates and intervals."""

    mean: Floats
    low: Floats
    high: Floats


def totals(timeline: Timeline, request: Request) -> Totals:
    """Return the sums over one request's rounds."""
    draft_ns = score_ns = forwards = drafted = kept = corrections = 0
    for step in timeline:
        draft_ns += step.draft_ns
        score_ns += step.score_ns
        forwards += step.round.score > 0
        drafted += step.round.draft
        kept += min(step.accepted, request.limit - step.frontier.verified)
        corrections += step.accepted < candidates(step.frontier, step.round)
    return Totals(
        tokens=request.limit,
        time_ns=timeline[-1].stop - timeline[0].start,
        draft_ns=draft_ns,
        score_ns=score_ns,
        forwards=forwards - 1,
        drafted=drafted,
        kept=kept,
        corrections=corrections,
    )


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> Interval:
    """Return sum(numerators) / sum(denominators) over requests, its interval by the delta method."""
    return Interval(*(float(part) for part in ratios(numerators, denominators)))


def ratios(numerators: ArrayLike, denominators: ArrayLike) -> Intervals:
    """Return many ratios at once.

    Requests lie along the last axis; before it, arrays are broadcast.
    """
    top, bottom = np.asarray(numerators, float), np.asarray(denominators, float)
    below, count = bottom.sum(axis=-1), bottom.shape[-1]
    value = top.sum(axis=-1) / below
    if count < 2:
        nothing = np.full_like(value, math.nan)
        return Intervals(value, nothing, nothing)
    off = top - value[..., None] * bottom
    reach = t95(count - 1) * np.sqrt(np.sum(off**2, axis=-1) * count / (count - 1)) / below
    return Intervals(value, value - reach, value + reach)


def standard_errors(sample: ArrayLike, expected: ArrayLike) -> Floats:
    """Return how many standard errors the mean of `sample`'s last axis lies above `expected`; NaN where unknown.

    Nobody can tell for fewer than two values, and for equal ones that differ from `expected`: they may be wrong, or
    just all have missed something rare.
    """
    values, mean = np.asarray(sample, float), np.asarray(expected, float)
    count = values.shape[-1]
    if count < 2:
        return np.full(np.broadcast_shapes(values.shape[:-1], mean.shape), math.nan)
    error = values.std(axis=-1, ddof=1) / math.sqrt(count)
    off = values.mean(axis=-1) - mean
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(error > 0, off / error, math.nan)
    return np.where(np.abs(off) <= 1e-9 * np.abs(mean), 0.0, errors)


def t95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t (Hill 1970's expansion; a table where it is too short)."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z, n = 1.959964, float(freedom)
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / n**power for power, term in enumerate(terms, start=1))


_T95 = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462)


def unknown_rounds(timelines: Sequence[Timeline], censored: Sequence[Censored]) -> float:
    """Return the share of target forwards whose outcome a record cannot tell.

    A chain whose run is known only to be at least so long is replayed as if its next draft were wrong.
    """
    unknown = forwards = 0
    for timeline, cut in zip(timelines, censored, strict=True):
        chain = 0
        for step in timeline:
            if step.frontier.pending == 0:
                chain = step.frontier.verified
            stopped = step.accepted < candidates(step.frontier, step.round)
            unknown += stopped and bool(cut[chain])
            forwards += step.round.score > 0
    return unknown / forwards


def acceptance_by_depth(
    timelines: Sequence[Timeline], censored: Sequence[Censored] | None = None
) -> list[tuple[int, int, int]]:
    """Return (depth, checked, accepted) for depth 1, 2, ...: draft tokens by their place in their chain.

    A draft behind a rejected one is dropped unseen, so it counts as neither; nor does one past the end of a record,
    whose fate nobody knows.
    """
    # Rounds are counted by the depths they start and stop at, then spread over the depths between.
    checks: Counter[tuple[int, int]] = Counter()
    accepts: Counter[tuple[int, int]] = Counter()
    for number, timeline in enumerate(timelines):
        chain = 0
        for step in timeline:
            verified, pending = step.frontier
            if pending == 0:
                chain = verified
            depth, checked = verified - chain, candidates(step.frontier, step.round)
            if censored is not None and checked and censored[number][chain]:
                checked = min(checked, step.accepted)
            accepts[depth, depth + step.accepted] += 1
            checks[depth, depth + min(step.accepted + 1, checked)] += 1
    deepest = max((stop for _, stop in checks), default=0)
    spread = [[0] * deepest, [0] * deepest]
    for counts, by_depth in zip((checks, accepts), spread, strict=True):
        for (start, stop), rounds in counts.items():
            for depth in range(start, stop):
                by_depth[depth] += rounds
    return [(depth, *both) for depth, both in enumerate(zip(*spread, strict=True), start=1)]


def tally_of(timelines: Sequence[Timeline], requests: Sequence[Request], censored: Sequence[Censored] | None) -> Tally:
    """Return everything that is counted on these timelines."""
    return Tally(
        [totals(timeline, request) for timeline, request in zip(timelines, requests, strict=True)],
        acceptance_by_depth(timelines, censored),
        None if censored is None else unknown_rounds(timelines, censored),
    )
