"""One walk, many costs: what its rounds take under each of them, in arrays.

It is what `price` of drivers/kernel.py says of one cost after another, `==`, where all times fit in WHOLE.
"""

from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pearl_sim.affine import Slopes
from pearl_sim.drivers.growth import Growth, growth, overlapped
from pearl_sim.drivers.walk import Walk
from pearl_sim.prices import Costs
from pearl_sim.rules import Policy, Round
from pearl_sim.timing import add_up

Floats: TypeAlias = NDArray[np.float64]

WHOLE = 2**53
"""Up to here floats hold every whole number, so sums and products of nanoseconds are exact in them, and fast."""


def fitting(walked: Walk, costs: Costs) -> NDArray[np.bool_]:
    """Return [cost], whether all times of the walk certainly fit in WHOLE."""
    context = int((walked.prompt_tokens + walked.limits).max(initial=0)) + 2 * walked.policy.gamma
    return costs.within(WHOLE, walked.policy, int(walked.counts.sum()), walked.prompt_tokens, context)


def price(walked: Walk, costs: Costs) -> tuple[Floats, Floats, Floats]:
    """Return [cost, request] the time, and [cost] the draft's and the target's over all requests, prefill included.

    The costs must be alike in their slopes; if any slope is not 0, the walk must have its rounds.
    """
    policy, overlap_ppm = walked.policy, costs.numbers["contention"]
    # Most often no prompt differs from another in what it takes.
    alike = not (costs.numbers["draft.per_token"].any() or costs.numbers["target.per_token"].any())
    prompts, which = np.unique(walked.prompt_tokens[:1] if alike else walked.prompt_tokens, return_inverse=True)
    shape = len(costs), len(walked.limits)
    prefill = [np.broadcast_to(part.astype(float)[:, which], shape) for part in costs.prefill_times(policy, prompts)]
    time_ns, draft_ns, score_ns = prefill[0].copy(), prefill[1].sum(axis=1), prefill[2].sum(axis=1)
    for column, (pending, round) in enumerate(walked.kinds.items()):
        count = walked.counts[:, column].astype(float)
        draft_part, score_part, _ = costs.parts(round)
        slopes = costs.slopes(round)
        if round.draft and round.score and any(slopes):
            own = overlapped(_growth(walked, pending, slopes), draft_part, score_part, overlap_ppm)
        else:
            times = add_up(draft_part, score_part, 0, overlap_ppm)
            own = times.round_ns[:, None] * count, times.draft_ns * count.sum(), times.score_ns * count.sum()
            if any(slopes):
                # Only one model runs, so what its part takes longer, so does the round.
                draft_more, score_more = _growth(walked, pending, slopes).sums
                own = own[0] + draft_more + score_more, own[1] + draft_more.sum(), own[2] + score_more.sum()
        time_ns += own[0] + costs.hand_over(policy, round)[:, None] * count
        draft_ns += own[1]
        score_ns += own[2]
    return time_ns, draft_ns, score_ns


def round_ns(costs: Costs, policy: Policy, round: Round) -> Floats | None:
    """Return [cost], what such a round takes; None if its time depends on context."""
    draft_ns, score_ns, _ = costs.parts(round)
    if any(costs.slopes(round)):
        return None
    return add_up(draft_ns, score_ns, costs.hand_over(policy, round), costs.numbers["contention"]).round_ns.astype(
        float
    )


@lru_cache(maxsize=16)
def _growth(walked: Walk, pending: int, slopes: Slopes) -> Growth:
    return growth(walked, pending, slopes)
