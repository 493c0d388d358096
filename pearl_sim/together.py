"""One walk, many costs: what its rounds take under each of them, in arrays.

It is what `price` of drivers/kernel.py says of one cost after another, `==`, where all times fit in WHOLE.
"""

from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pearl_sim.affine import Slopes
from pearl_sim.drivers.growth import Growth, added, growth
from pearl_sim.drivers.walk import Integers, Walk
from pearl_sim.prices import Costs
from pearl_sim.rules import Policy, Round

Floats: TypeAlias = NDArray[np.float64]

WHOLE = 2**53
"""Up to here floats hold every whole number, so sums and products of nanoseconds are exact in them, and fast."""


def fitting(walked: Walk, costs: Costs) -> NDArray[np.bool_]:
    """Return [cost], whether all times of the walk certainly fit in WHOLE."""
    rounds = int(walked.counts.sum())
    return costs.within(WHOLE, walked.policy, rounds, walked.prompt_tokens, walked.longest_context)


class Rates(NamedTuple):
    """What a walk's rounds take under many costs, before they are added up for every request.

    round_ns:   [cost, kind], before context counts.
    prefill_ns: [cost, prompt], and `prompt` says for every request which; one for all, if no prompt differs in it.
    draft_ns, score_ns: [cost], the draft's and the target's over all requests, prefill included, before context counts.
    grown:      for every kind of round that takes longer with context: how, and [cost] its two parts before that.
    """

    walked: Walk
    costs: Costs
    round_ns: Floats
    prefill_ns: Floats
    prompt: Integers
    draft_ns: Floats
    score_ns: Floats
    grown: list[tuple[Growth, Integers, Integers]]


def rates(walked: Walk, costs: Costs) -> Rates:
    """Return what the rounds take; the costs must share their slopes, and if any is not 0, the walk have its rounds."""
    counts = walked.counts.sum(axis=0).astype(float)
    # Most often no prompt differs from another in what it takes.
    one = not (np.any(costs.numbers["draft.per_token"]) or np.any(costs.numbers["target.per_token"]))
    first = walked.prompt_tokens[:1], np.zeros(1, np.int64)
    prompts, which = first if one else np.unique(walked.prompt_tokens, return_inverse=True)
    readers = np.bincount(which, minlength=len(prompts)) * (len(walked.limits) // len(which))
    prefill = [part.astype(float) for part in costs.prefill_times(walked.policy, prompts)]
    rounds = [part.astype(float) for part in costs.round_times(walked.policy, list(walked.kinds.values()))]
    draft_ns, score_ns = (own @ counts + read @ readers for own, read in zip(rounds[1:], prefill[1:], strict=True))
    slopes = {pending: costs.slopes(round) for pending, round in walked.kinds.items()} if costs.grow else {}
    grown = [
        (_growth(walked, pending, own), *costs.parts(walked.kinds[pending]))
        for pending, own in slopes.items()
        if any(own)
    ]
    return Rates(walked, costs, rounds[0], prefill[0], which, draft_ns, score_ns, grown)


def price(rates: Rates, block: slice) -> tuple[Floats, Floats, Floats]:
    """Return, for a block of costs, [cost, request] the time, and [cost] the draft's and the target's over requests."""
    time_ns = rates.round_ns[block] @ rates.walked.counts.T.astype(float)
    time_ns += rates.prefill_ns[block][:, rates.prompt]
    draft_ns, score_ns = rates.draft_ns[block].copy(), rates.score_ns[block].copy()
    for grown, draft_part, score_part in rates.grown:
        more = added(grown, draft_part[block], score_part[block], rates.costs.overlap_ppm[block])
        time_ns += more[0]
        draft_ns += more[1]
        score_ns += more[2]
    return time_ns, draft_ns, score_ns


def round_ns(costs: Costs, policy: Policy, round: Round) -> Floats | None:
    """Return [cost], what such a round takes; None if its time depends on context."""
    return None if any(costs.slopes(round)) else costs.round_times(policy, [round]).round_ns[:, 0].astype(float)


@lru_cache(maxsize=16)
def _growth(walked: Walk, pending: int, slopes: Slopes) -> Growth:
    return growth(walked, pending, slopes)
