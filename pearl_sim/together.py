"""One walk, many costs: what its rounds take under each of them, in arrays.

It is what `price` of drivers/kernel.py says of one cost after another, `==`, where all times fit in WHOLE.
"""

from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pearl_sim.affine import Slopes
from pearl_sim.drivers.growth import Growth, added, growth
from pearl_sim.drivers.walk import Walk
from pearl_sim.prices import Costs
from pearl_sim.rules import Policy, Round

Floats: TypeAlias = NDArray[np.float64]

WHOLE = 2**53
"""Up to here floats hold every whole number, so sums and products of nanoseconds are exact in them, and fast."""


def fitting(walked: Walk, costs: Costs) -> NDArray[np.bool_]:
    """Return [cost], whether all times of the walk certainly fit in WHOLE."""
    # In Python's integers, which do not wrap around.
    longest = (int(tokens.max(initial=0)) for tokens in (walked.prompt_tokens, walked.limits))
    context = sum(longest) + 2 * walked.policy.gamma
    return costs.within(WHOLE, walked.policy, int(walked.counts.sum()), walked.prompt_tokens, context)


def price(walked: Walk, costs: Costs) -> tuple[Floats, Floats, Floats]:
    """Return [cost, request] the time, and [cost] the draft's and the target's over all requests, prefill included.

    The costs must share their slopes; if any slope is not 0, the walk must have its rounds.
    """
    policy, counts = walked.policy, walked.counts.astype(float)
    # Most often no prompt differs from another in what it takes.
    one = not (np.any(costs.numbers["draft.per_token"]) or np.any(costs.numbers["target.per_token"]))
    first = walked.prompt_tokens[:1], np.zeros(1, np.int64)
    prompts, which = first if one else np.unique(walked.prompt_tokens, return_inverse=True)
    prefill = [part.astype(float)[:, which] for part in costs.prefill_times(policy, prompts)]
    rounds = [part.astype(float) for part in costs.round_times(policy, list(walked.kinds.values()))]
    time_ns = rounds[0] @ counts.T + prefill[0]
    draft_ns, score_ns = (
        own @ counts.sum(axis=0) + read.sum(axis=1) * (len(counts) // len(which))
        for own, read in zip(rounds[1:], prefill[1:], strict=True)
    )
    for pending, round in walked.kinds.items() if costs.grow else ():
        slopes = costs.slopes(round)
        if any(slopes):
            more = added(_growth(walked, pending, slopes), *costs.parts(round), costs.overlap_ppm)
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
