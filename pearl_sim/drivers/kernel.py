"""The kernel: the simulator without events, compiled by numba.

A walk (walk.py) makes the rounds; `price` says how long they take, by the functions of timing.py.  Requests are served
one at a time, so the end of a round needs no event: it is the later end of its two parts, then hand-over.  The kernel
therefore gives what drivers/sim.py gives, `==`: every round, every nanosecond, every draw.

Where neither context nor luck changes a time, counting the rounds of each kind is enough.  Its clock has 64 bits: where
times could pass that, OverflowError is raised; nothing ever wraps around.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pearl_sim.drivers.compiled import compiled
from pearl_sim.drivers.walk import Integers, Walk, walk
from pearl_sim.judge import Censored, Request
from pearl_sim.metrics import Tally, Totals
from pearl_sim.rules import Frontier, Policy, Round, plan
from pearl_sim.timeline import Step, Timeline
from pearl_sim.timing import (
    HandOver,
    Latency,
    Timing,
    circumstance,
    delay_ns,
    draw_numbers,
    latency_ns,
    prefill_parts,
    round_times,
)

LARGEST = 2**63 - 1
CLOCK = "times in this simulation could pass 2^63 ns, the end of the kernel's clock"


def price(walked: Walk, timing: Timing, seed: int) -> Integers:
    """Return [3, request]: the time, the draft's and the target's, prefill included.

    OverflowError if time could pass 2^63 ns; the walk must have its rounds unless `timing` is fixed.
    """
    prefill = _prefill(walked, timing)
    if not timing.fixed:
        return _price_rounds(walked, timing, seed, prefill, np.empty((0, 3), np.int64))
    rounds = [round_times(timing, drafted, scored) for drafted, scored in walked.kinds.values()]
    each = np.array([[part.item() for part in times] for times in rounds if times is not None], np.int64)
    times_ns: Integers = each.reshape(-1, 3).T @ walked.counts.T + np.stack([prefill.max(axis=1), *prefill.T])
    return times_ns


def simulate(policy: Policy, requests: Sequence[Request], timing: Timing, seed: int) -> list[Timeline]:
    """Return the timeline of every request, as the SimPy driver does; OverflowError if time could pass 2^63 ns."""
    walked = walk(policy, requests)
    prefill = _prefill(walked, timing)
    spent = np.empty((len(walked.rounds), 3), np.int64)
    _price_rounds(walked, timing, seed, prefill, spent)
    rows = iter(zip(walked.rounds.tolist(), spent.tolist(), strict=True))
    timelines: list[Timeline] = []
    now = 0
    for rounds, (draft_ns, score_ns) in zip(walked.counts.sum(axis=1).tolist(), prefill.tolist(), strict=True):
        start, now = now, now + max(draft_ns, score_ns)
        timelines.append([Step(start, now, draft_ns, score_ns, Frontier(0, 0), Round(0, 1), 0)])
        for (verified, pending, accepted), (round_ns, *parts) in islice(rows, rounds):
            start, now = now, now + round_ns
            state = Frontier(verified, pending), walked.kinds[pending], accepted
            timelines[-1].append(Step(start, now, parts[0], parts[1], *state))
    return timelines


def tally(
    policy: Policy, requests: Sequence[Request], timing: Timing, seed: int, censored: Sequence[Censored] | None
) -> Tally:
    """Return the tally of these timelines without making them; OverflowError if time could pass 2^63 ns."""
    walked = walk(policy, requests, censored, rounds=not timing.fixed)
    drafted, scored = walked.work
    forwards, drafts = walked.counts @ (scored > 0), walked.counts @ drafted
    columns = (walked.limits, *price(walked, timing, seed), forwards, drafts, walked.kept, walked.corrections)
    found = [Totals(*row) for row in np.stack(columns, axis=1).tolist()]
    return Tally(found, walked.depths, walked.unknown_rounds)


def _prefill(walked: Walk, timing: Timing) -> Integers:
    """Return [request, 2], the (draft's, target's) time to read each prompt.

    OverflowError if a product or the clock could pass 2^63, were every round the longest there is.
    """
    parts = {prompt: prefill_parts(walked.policy, timing, prompt) for prompt in set(walked.prompt_tokens.tolist())}
    prefill = [parts[prompt] for prompt in walked.prompt_tokens.tolist()]
    longest_ns = product = 0
    for latency in (*timing.draft, *timing.target):
        slope = max(latency.slope_ps) * walked.longest_context
        longest_ns = max(longest_ns, *latency.floor_ns, max(map(max, latency.base_ns)) + slope // 1000)
        product = max(product, slope)
    delay = longest_ns * timing.overlap_ppm
    round_ns = longest_ns + delay // 1_000_000 + max(timing.hand_over)
    end = sum(map(max, prefill)) + round_ns * 2 * int(walked.limits.sum())
    if max(product, delay, end) > LARGEST:
        raise OverflowError(CLOCK)
    return np.array(prefill, np.int64).reshape(-1, 2)


def _price_rounds(walked: Walk, timing: Timing, seed: int, prefill: Integers, spent: Integers) -> Integers:
    """Return what `price` does, round by round; fill `spent` [round, 3], likewise, if it has any room."""
    # All circumstances in one table, one after another.
    tables = (
        Latency._make(
            np.concatenate([np.asarray(table, np.int64) for table in tables]) for tables in zip(*model, strict=True)
        )
        for model in (timing.draft, timing.target)
    )
    sums: Integers = np.empty((3, len(walked.limits)), np.int64)
    clock(
        walked.policy,
        walked.rounds,
        walked.counts.sum(axis=1),
        walked.prompt_tokens,
        walked.limits,
        _draws(seed, timing.target.draws, tuple(walked.limits.tolist())),
        prefill,
        *tables,
        timing.hand_over,
        timing.overlap_ppm,
        sums,
        spent,
    )
    return sums


@lru_cache(maxsize=2)
def _draws(seed: int, draws: int, limits: tuple[int, ...]) -> Integers:
    """Return [round, 2], the draws of more rounds than any policy needs, one request after another."""
    # No policy takes more than two rounds a token.
    each = [draw_numbers(seed, number, draws, 2 * limit) for number, limit in enumerate(limits)]
    return np.concatenate([np.empty((0, 2), np.int64), *each])


def _clock(
    policy: Policy,
    rounds: NDArray[np.int32],
    how_many: Integers,
    prompts: Integers,
    limits: Integers,
    draws: Integers,
    prefill: Integers,
    draft: Any,
    target: Any,
    hand_over: HandOver,
    overlap_ppm: int,
    sums: Integers,
    spent: Integers,
) -> None:
    """Time the rounds; `draws` has no rows where nothing is random.

    draft, target: Latency, the sizes of all circumstances one after another.
    """
    # One loop, its tables in local names: handing them to a function each round would cost ten times the round.
    draft_over_ns, target_over_ns, both_over_ns = hand_over
    first = first_draw = 0
    draft_draw = target_draw = 0
    draft_sizes, target_sizes = len(draft.slope_ps) // 4, len(target.slope_ps) // 4
    for request in range(len(how_many)):
        prompt_tokens, draft_sum, score_sum = prompts[request], prefill[request, 0], prefill[request, 1]
        time_ns = max(draft_sum, score_sum)
        draft_rested, target_rested = True, False  # the target reads the prompt for longer
        for index in range(first, first + how_many[request]):
            verified, pending = rounds[index, 0], rounds[index, 1]
            drafted, scored = plan(policy, Frontier(verified, pending))
            read, held = prompt_tokens + verified + pending, prompt_tokens + verified
            if len(draws):
                draw = first_draw + index - first
                draft_draw, target_draw = draws[draw, 0], draws[draw, 1]
            beside = drafted > 0 and scored > 0
            draft_row = circumstance(beside, draft_rested) * draft_sizes + drafted
            target_row = circumstance(beside, target_rested) * target_sizes + scored
            if beside:
                draft_ns = latency_ns(draft, draft_row, read, draft_draw)
                score_ns = latency_ns(target, target_row, held, target_draw)
                delay = delay_ns(draft_ns, score_ns, overlap_ppm) if overlap_ppm else 0
                draft_ns, score_ns, over_ns = draft_ns + delay, score_ns + delay, both_over_ns
            elif drafted:
                draft_ns, score_ns, over_ns = latency_ns(draft, draft_row, read, draft_draw), 0, draft_over_ns
            else:
                draft_ns, score_ns, over_ns = 0, latency_ns(target, target_row, held, target_draw), target_over_ns
            draft_rested, target_rested = drafted == 0, scored == 0
            round_ns = max(draft_ns, score_ns) + over_ns
            time_ns, draft_sum, score_sum = time_ns + round_ns, draft_sum + draft_ns, score_sum + score_ns
            if len(spent):
                spent[index, 0], spent[index, 1], spent[index, 2] = round_ns, draft_ns, score_ns
        first += how_many[request]
        first_draw += 2 * limits[request]
        sums[0, request], sums[1, request], sums[2, request] = time_ns, draft_sum, score_sum


clock = compiled(_clock, plan, circumstance, latency_ns, delay_ns)
