"""The kernel: the simulator's loop without events, compiled by numba.

Its law: what makes a round (plan, candidates, accept, settle) and what times it (latency_ns, delay_ns) is not
written again here; numba compiles the functions of rules.py, judge.py and timing.py themselves.  Requests are served
one at a time, so the end of a round needs no event: it is the later end of its two parts, then hand-over.  The
kernel therefore gives what drivers/sim.py gives, `==`: every round, every nanosecond, every draw.

Its clock has 64 bits.  Where times could pass that, OverflowError is raised; nothing ever wraps around.
"""

import inspect
import sys
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numba.extending import register_jitable
from numpy.typing import NDArray

from pearl_sim.judge import Censored, Request, accept
from pearl_sim.metrics import Tally, Totals
from pearl_sim.rules import Frontier, Policy, Round, candidates, plan, settle
from pearl_sim.timeline import Step, Timeline
from pearl_sim.timing import HandOver, Latency, Timing, delay_ns, draw_numbers, latency_ns, prefill_parts

Integers: TypeAlias = NDArray[np.int64]

LARGEST = 2**63 - 1
STEP_FIELDS = 9
NO_STEPS = np.empty((0, STEP_FIELDS), np.int64)


class Clock(NamedTuple):
    """A Timing in arrays.

    draft, ...:      Latency, the same NamedTuple, so that numba compiles latency_ns as it stands.
    fixed_draft_ns, fixed_target_ns: [alone or beside the other model, size], where neither context nor luck changes
                     a time; empty elsewhere.
    """

    draft: Any
    target: Any
    draft_beside: Any
    target_beside: Any
    fixed_draft_ns: Integers
    fixed_target_ns: Integers
    hand_over: HandOver
    overlap_ppm: int


class Batch(NamedTuple):
    """The requests, an entry each; then all their runs and all their draws, one request after another.

    prefill_ns: (draft's, target's).
    censored:   an entry a run: whether it is known only to be at least so long.
    draws:      (draft's, target's) base time of each of 2 * limit rounds a request; none where nothing is random.
    """

    prompt_tokens: Integers
    limit: Integers
    prefill_ns: Integers
    first_run: Integers
    runs: Integers
    censored: Censored
    draws: Integers


def simulate(policy: Policy, requests: Sequence[Request], timing: Timing, seed: int) -> list[Timeline]:
    """Return the timeline of every request, as the SimPy driver does; OverflowError if time could pass 2^63 ns."""
    steps = np.empty((sum(1 + 2 * request.limit for request in requests), STEP_FIELDS), np.int64)
    _, _, taken, _ = _run(policy, requests, timing, seed, None, steps)
    timelines: list[Timeline] = []
    for start, stop, draft_ns, score_ns, verified, pending, drafted, scored, accepted in steps[:taken].tolist():
        if verified == 0:
            timelines.append([])
        timelines[-1].append(
            Step(start, stop, draft_ns, score_ns, Frontier(verified, pending), Round(drafted, scored), accepted)
        )
    return timelines


def tally(
    policy: Policy, requests: Sequence[Request], timing: Timing, seed: int, censored: Sequence[Censored] | None
) -> Tally:
    """Return the tally of these timelines without making them; OverflowError if time could pass 2^63 ns."""
    sums, ends, _, unknown = _run(policy, requests, timing, seed, censored, NO_STEPS)
    found = [Totals(*row) for row in sums.tolist()]
    # Draft d of a chain was checked in every chain of which d or more were, and accepted likewise.
    checked, accepted = np.cumsum(ends[:, ::-1], axis=1)[:, ::-1].tolist()
    depths = [(depth, *both) for depth, both in enumerate(zip(checked, accepted, strict=True)) if depth]
    # Prefill is a target forward too, one whose outcome is known.
    forwards = sum(totals.forwards + 1 for totals in found)
    return Tally(found, depths, None if censored is None else unknown / forwards)


def _run(
    policy: Policy,
    requests: Sequence[Request],
    timing: Timing,
    seed: int,
    censored: Sequence[Censored] | None,
    steps: Integers,
) -> tuple[Integers, Integers, int, int]:
    """Return sums [request, Totals], chains [checked or accepted, how many drafts], steps taken, unknown rounds."""
    limits = [request.limit for request in requests]
    prefill = [prefill_parts(policy, timing, request.prompt_tokens) for request in requests]
    clock = _clock(timing)
    _refuse_overflow(policy, requests, clock, prefill)
    luck = enumerate(limits if timing.target.draws > 1 else [])
    draws = [draw_numbers(seed, number, timing.target.draws, 2 * limit) for number, limit in luck]
    batch = Batch(
        np.array([request.prompt_tokens for request in requests], np.int64),
        np.array(limits, np.int64),
        np.array(prefill, np.int64).reshape(-1, 2),
        np.cumsum([0, *(len(request.runs) for request in requests)]),
        np.concatenate([np.empty(0, np.int64), *(request.runs for request in requests)], dtype=np.int64),
        np.concatenate(censored) if censored else np.zeros(sum(len(request.runs) for request in requests), np.bool_),
        np.concatenate([np.empty((0, 2), np.int64), *draws]),
    )
    sums = np.zeros((len(requests), len(Totals._fields)), np.int64)
    deepest = min(int(batch.runs.max(initial=0)), max(limits, default=0) + policy.gamma) + 1
    ends = np.zeros((2, deepest + 1), np.int64)
    taken, deepest, unknown = decode(policy, clock, batch, steps, sums, ends)
    return sums, ends[:, : deepest + 1], taken, unknown


def _clock(timing: Timing) -> Clock:
    parts = timing[:4]
    draft, target, draft_beside, target_beside = (
        Latency._make(np.asarray(table, np.int64) for table in part) for part in parts
    )
    fixed = not any(part.draws > 1 or any(part.slope_ps) for part in parts)
    times = [[0, *(latency_ns(part, size, 0, 0) for size in range(1, len(part.base_ns)))] for part in parts]
    draft_ns, target_ns = (np.array(times[role::2] if fixed else [[], []], np.int64) for role in (0, 1))
    return Clock(draft, target, draft_beside, target_beside, draft_ns, target_ns, timing.hand_over, timing.overlap_ppm)


def _refuse_overflow(
    policy: Policy, requests: Sequence[Request], clock: Clock, prefill: Sequence[tuple[int, int]]
) -> None:
    """Raise OverflowError if a product or the clock could pass 2^63, were every round the longest there is."""
    context = max((r.prompt_tokens + r.limit for r in requests), default=0) + 2 * policy.gamma
    longest_ns = product = 0
    for base_ns, slope_ps, floor_ns in clock[:4]:
        slope = int(slope_ps.max()) * context
        longest_ns = max(longest_ns, int(floor_ns.max()), int(base_ns.max()) + slope // 1000)
        product = max(product, slope)
    delay = longest_ns * clock.overlap_ppm
    round_ns = longest_ns + delay // 1_000_000 + max(clock.hand_over)
    end = sum(map(max, prefill)) + round_ns * sum(2 * request.limit for request in requests)
    if max(product, delay, end) > LARGEST:
        raise OverflowError("times in this simulation could pass 2^63 ns, the end of the kernel's clock")


def _decode(
    policy: Policy, clock: Clock, batch: Batch, steps: Integers, sums: Integers, ends: Integers
) -> tuple[int, int, int]:
    """Decode the batch; fill `sums`, `ends` (from zeros) and, if it has any room, `steps`.

    Returns how many steps were filled, the deepest draft checked, and the rounds that a record cannot tell.
    """
    # One loop, its tables in local names: handing them to a function each round would cost ten times the round.
    draft, target, draft_beside, target_beside, draft_table, target_table, hand_over, overlap_ppm = clock
    draft_over_ns, target_over_ns, both_over_ns = hand_over
    fixed, random, draws = draft_table.size > 0, len(batch.draws) > 0, (0, 0)
    now = taken = deepest = unknown = first_draw = 0
    for request in range(len(batch.limit)):
        prompt_tokens, limit = batch.prompt_tokens[request], batch.limit[request]
        first_run = batch.first_run[request]
        runs = batch.runs[first_run:]
        began, draft_sum, score_sum = now, batch.prefill_ns[request, 0], batch.prefill_ns[request, 1]
        now += max(draft_sum, score_sum)
        if len(steps):
            taken = _write(steps, taken, (began, now, draft_sum, score_sum, 0, 0, 0, 1, 0))

        forwards = drafts = kept = corrections = 0
        frontier, chain, draw = Frontier(1, 0), 1, first_draw
        while frontier.verified < limit:
            start, (verified, pending) = now, frontier
            drafted, scored = round = plan(policy, frontier)
            beside = drafted > 0 and scored > 0
            if fixed:
                draft_ns, score_ns = draft_table[int(beside), drafted], target_table[int(beside), scored]
            else:
                if random:
                    draws = batch.draws[draw, 0], batch.draws[draw, 1]
                    draw += 1
                read, held = prompt_tokens + verified + pending, prompt_tokens + verified
                if beside:
                    draft_ns = latency_ns(draft_beside, drafted, read, draws[0])
                    score_ns = latency_ns(target_beside, scored, held, draws[1])
                else:
                    draft_ns = latency_ns(draft, drafted, read, draws[0]) if drafted else 0
                    score_ns = latency_ns(target, scored, held, draws[1]) if scored else 0
            if overlap_ppm:
                delay = delay_ns(draft_ns, score_ns, overlap_ppm)
                draft_ns, score_ns = draft_ns + delay, score_ns + delay
            now += max(draft_ns, score_ns) + (both_over_ns if beside else draft_over_ns if drafted else target_over_ns)
            if pending == 0:
                chain = verified
            checked, accepted = candidates(frontier, round), 0
            if checked:
                accepted = accept(runs[chain], chain, verified, checked)
            frontier = settle(frontier, round, accepted)

            if len(steps):
                values = (start, now, draft_ns, score_ns, verified, pending, drafted, scored, accepted)
                taken = _write(steps, taken, values)
            draft_sum, score_sum = draft_sum + draft_ns, score_sum + score_ns
            forwards, drafts, kept = forwards + (scored > 0), drafts + drafted, kept + accepted
            if checked and (frontier.pending == 0 or frontier.verified >= limit):
                # The chain ends: its drafts were right down to this depth, and the next was wrong or not looked at.
                depth = verified - chain + accepted
                ends[1, depth] += 1
                if accepted < checked:
                    depth += 1
                    corrections += 1
                    unknown += batch.censored[first_run + chain]
                ends[0, depth] += 1
                deepest = max(deepest, depth)
                kept -= max(0, verified + accepted - limit)
        first_draw += 2 * limit
        _write(sums, request, (limit, now - began, draft_sum, score_sum, forwards, drafts, kept, corrections))
    return taken, deepest, unknown


def _write(table: Integers, row: int, values: tuple[int, ...]) -> int:
    """Write a row; return the number of the next one."""
    for column, value in enumerate(values):
        table[row, column] = value
    return row + 1


COMPILED = (plan, candidates, settle, accept, latency_ns, delay_ns, _write, _decode)
"""The functions that numba compiles."""


def _compiled() -> Any:
    """Return `_decode`, compiled, and kept on disk where numba finds a directory that it can write."""
    for function in COMPILED:
        register_jitable(function)
    # numba's cache looks at the cached function's own file and closure only; this one has every source in it.
    sources = zlib.crc32("".join(inspect.getsource(sys.modules[f.__module__]) for f in COMPILED).encode())

    def decode(*arguments: Any) -> Any:
        _ = sources
        return _decode(*arguments)

    try:
        return njit(cache=True)(decode)
    except RuntimeError:  # there is no such directory
        return njit(decode)


decode = _compiled()
