"""Which policy and gamma to use, and how sure that is: every candidate replayed on the same requests, then a bootstrap.

Requests are resampled, the same ones for all candidates, so that what differs between requests cancels where
candidates are compared (Efron & Tibshirani 1993).  The recommendation is the fastest of many, and a maximum flatters
itself.  So what the choice adds is estimated and taken off; and in every resample the rivals are chosen anew but the
recommendation is not, so that luck counts for them.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pearl_sim.cost import Cost
from pearl_sim.drivers import kernel
from pearl_sim.errors import InputError
from pearl_sim.judge import Censored, Request
from pearl_sim.metrics import Interval, t95
from pearl_sim.policies import POLICIES

Floats: TypeAlias = NDArray[np.float64]

RESAMPLES = 10_000
SEED = 0
"""Of latencies and resamples."""

PATIENCE = 8
LARGEST_GAMMA = 256
"""Where nobody says how far, gamma is searched until no policy has gained for PATIENCE gammas, or to the largest."""

MOST_UNKNOWN = 0.01
"""A rival with more of its target forwards past the end of the record may be faster than it looks."""

CELLS = 4_000_000
"""Entries of the resampling matrix that are kept at a time."""

Verdict: TypeAlias = Literal["speculate", "do not speculate", "too close to call"]


class Candidate(NamedTuple):
    """A policy by name, and the tokens it drafts a round (0: autoregressive)."""

    policy: str
    gamma: int

    @property
    def devices(self) -> int:
        """Return how many devices work at once: two where a round drafts and scores at the same time."""
        policy = POLICIES[self.policy](self.gamma)
        return 2 if policy.gamma and (policy.pre_verify or policy.post_verify) else 1


class Replayed(NamedTuple):
    """What every candidate took for every request; the first candidate is autoregressive decoding.

    tokens:         [request], output tokens.
    time_s:         [candidate, request], prefill included.
    unknown_rounds: [candidate], share of target forwards that a truncated record cannot tell; None: not truncated.
    limited:        what kept the search from going on while some policy might still gain; None if nothing did.
    """

    candidates: list[Candidate]
    tokens: Floats
    time_s: Floats
    unknown_rounds: list[float | None]
    limited: str | None

    @property
    def max_gamma(self) -> int:
        """Return the largest gamma searched."""
        return max(candidate.gamma for candidate in self.candidates)


class Rated(NamedTuple):
    """One candidate's speed, and its speed over autoregressive decoding.

    fastest_share: share of the resamples in which it is the fastest candidate; NaN for fewer than two requests.
    """

    candidate: Candidate
    tokens_per_s: Interval
    speedup: Interval
    fastest_share: float
    unknown_rounds: float | None


class Rival(NamedTuple):
    """A candidate that was not chosen, and by what share the recommendation is faster.

    The margin's interval is over the fastest of the rival's kind in each resample, which need not be this one.
    """

    rated: Rated
    margin: Interval


class Answer(NamedTuple):
    """The recommendation and its rivals.

    runner_up:  the fastest candidate of any other policy.
    next_gamma: the fastest other gamma of the same policy; None if there is none.
    one_device: the fastest candidate that needs only one device; None if the recommendation is one.
    drafting:   the fastest candidate that drafts: `best`, or where that is autoregressive decoding, `runner_up`.
    tokens_per_s, speedup: what to expect of `drafting`: as replayed, less the optimism.
    optimism:   what choosing the fastest of all adds to its speed-up, on average; 0 where it cannot be told.
    by_policy:  the fastest candidate of every policy, fastest first.
    rated:      all candidates, in the order they were replayed.
    """

    verdict: Verdict
    requests: int
    best: Rated
    runner_up: Rival
    next_gamma: Rival | None
    one_device: Rival | None
    drafting: Rated
    tokens_per_s: Interval
    speedup: Interval
    optimism: float
    by_policy: list[Rated]
    rated: list[Rated]


def replay(
    requests: Sequence[Request],
    cost: Cost,
    run_limit: int | None,
    max_gamma: int | None = None,
    on_gamma: Callable[[int], object] = lambda gamma: None,
    censored: Sequence[Censored] | None = None,
) -> Replayed:
    """Return what `requests` take under every policy at gamma 1 to `max_gamma`; `on_gamma` is called after each.

    `censored` says where their runs may be longer than recorded, if anywhere.

    Left out, the search ends by itself, or where the record or the cost cannot tell any more.  InputError if they
    cannot tell what was asked for.
    """
    if max_gamma and run_limit is not None and max_gamma > run_limit:
        raise InputError(f"--max-gamma {max_gamma}", f"{_recorded(run_limit)}; use {run_limit} or less")
    for name in POLICIES if max_gamma else ():
        cost.timing(POLICIES[name](max_gamma or 0))  # what it cannot price is said before anything is replayed
    candidates, times, unknown, limited = [], [], [], None
    best: dict[str, tuple[int, int]] = {}
    for gamma in range((max_gamma or LARGEST_GAMMA) + 1):
        if gamma > 1 and not max_gamma and all(gamma > found + PATIENCE for _, found in best.values()):
            break
        if run_limit is not None and gamma > run_limit:
            limited = _recorded(run_limit)
            break
        names = [name for name in POLICIES if (name == "ar") == (gamma == 0)]
        policies = [POLICIES[name](gamma) for name in names]
        try:
            timings = [cost.timing(policy) for policy in policies]
        except InputError as error:
            if gamma <= 1:
                raise
            limited = str(error)
            break
        for name, policy, timing in zip(names, policies, timings, strict=True):
            try:
                tally = kernel.tally(policy, requests, timing, SEED, censored)
            except OverflowError as error:
                raise InputError("cost", f"{error}; use shorter durations") from None
            candidates.append(Candidate(name, gamma))
            times.append([totals.time_ns / 1e9 for totals in tally.totals])
            unknown.append(tally.unknown_rounds)
            took = sum(totals.time_ns for totals in tally.totals), gamma
            best[name] = min(best.get(name, took), took)
        on_gamma(gamma)
    tokens = np.array([request.limit for request in requests], np.float64)
    return Replayed(candidates, tokens, np.array(times, np.float64), unknown, limited)


def _recorded(run_limit: int) -> str:
    return f"the trace was recorded with at most {run_limit} drafts in a row"


def decide(replayed: Replayed, resamples: int = RESAMPLES) -> Answer:
    """Return the recommendation.  For fewer than two requests every interval is NaN and the verdict is by estimate."""
    candidates, count = replayed.candidates, len(replayed.tokens)
    speeds = replayed.tokens.sum() / replayed.time_s.sum(axis=1)
    # Among equals the first: the smaller gamma, the simpler policy.
    order: list[int] = np.argsort(-speeds, kind="stable").tolist()
    first_of: dict[str, int] = {}
    for i in order:
        first_of.setdefault(candidates[i].policy, i)
    best = order[0]
    others = [i for i in order if candidates[i].policy != candidates[best].policy]
    same = [i for i in order[1:] if candidates[i].policy == candidates[best].policy]
    single = [i for i in order if candidates[i].devices == 1] if candidates[best].devices > 1 else []
    drawn = resampled(replayed.tokens, replayed.time_s, resamples) if count > 1 else np.empty((0, len(candidates)))
    tails = tail(count)

    def interval(estimate: float, sample: Floats) -> Interval:
        low, high = np.quantile(sample, [tails, 1 - tails]) if len(sample) else (math.nan, math.nan)
        return Interval(float(estimate), float(low), float(high))

    def rival(group: list[int]) -> Rival:
        strongest = drawn[:, group].max(axis=1)
        return Rival(rated[group[0]], interval(speeds[best] / speeds[group[0]] - 1, drawn[:, best] / strongest - 1))

    wins = np.bincount(drawn.argmax(axis=1), minlength=len(candidates))
    shares = wins / len(drawn) if len(drawn) else np.full(len(candidates), math.nan)
    rated = [
        Rated(
            candidate,
            interval(speeds[i], drawn[:, i]),
            interval(speeds[i] / speeds[0], drawn[:, i] / drawn[:, 0]),
            float(shares[i]),
            replayed.unknown_rounds[i],
        )
        for i, candidate in enumerate(candidates)
    ]
    runner_up = rival(others)
    drafting = rated[next(i for i in order if candidates[i].gamma)]
    lucky = drawn[:, 1:].argmax(axis=1) + 1
    optimism = _optimism(drawn / drawn[:, :1], speeds / speeds[0], lucky)
    return Answer(
        verdict=_verdict(candidates[best], runner_up.margin, [rated[i] for i in others]),
        requests=count,
        best=rated[best],
        runner_up=runner_up,
        next_gamma=rival(same) if same else None,
        one_device=rival(single) if single else None,
        drafting=drafting,
        tokens_per_s=_less(drafting.tokens_per_s, _optimism(drawn, speeds, lucky)),
        speedup=_less(drafting.speedup, optimism),
        optimism=optimism,
        by_policy=[rated[i] for i in first_of.values()],
        rated=rated,
    )


def resampled(tokens: Floats, time_s: Floats, resamples: int) -> Floats:
    """Return tokens/s [resample, candidate] of as many requests drawn with replacement, the same for all candidates."""
    generator, count = np.random.default_rng(SEED), len(tokens)
    at_once = max(1, CELLS // count)
    speeds = []
    for first in range(0, resamples, at_once):
        rows = min(at_once, resamples - first)
        drawn = generator.multinomial(count, np.full(count, 1 / count), rows).astype(np.float64)
        speeds.append((drawn @ tokens)[:, None] / (drawn @ time_s.T))
    return np.concatenate(speeds)


def tail(requests: int) -> float:
    """Return the share left out at each end of a 95 % bootstrap interval over so many requests.

    A plain percentile interval is too narrow for few; this is Hesterberg's (2015) expansion of it, by which the
    interval of a mean is as wide as Student's.
    """
    if requests < 2:
        return math.nan
    return NormalDist().cdf(-t95(requests - 1) * math.sqrt(requests / (requests - 1)))


def _optimism(drawn: Floats, measured: Floats, lucky: NDArray[np.int64]) -> float:
    """Return by how much each resample's own winner, as it looks there, exceeds what it is in the whole sample.

    Efron 1983's estimate of what the whole sample's winner in turn owes to luck; 0 where nothing was resampled.
    """
    return float((drawn[np.arange(len(drawn)), lucky] - measured[lucky]).mean()) if len(drawn) else 0.0


def _less(estimate: Interval, optimism: float) -> Interval:
    return Interval(*(value - optimism for value in estimate))


def _verdict(best: Candidate, margin: Interval, others: Sequence[Rated]) -> Verdict:
    # What a record does not know is replayed as wrong, so such a rival may be faster than it looks.
    underrated = any((rival.unknown_rounds or 0) > MOST_UNKNOWN for rival in others)
    if margin.mean <= 0 or margin.low <= 0 or underrated:
        return "too close to call"
    return "speculate" if best.gamma else "do not speculate"
