"""The simulator: draft and target as SimPy devices, requests as processes that hold them while they decode.

In a round both models start together; the round is over when the slower one is done and the hand-over has been
paid.  Time is whole nanoseconds.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import simpy

from pearl_sim.judge import Censored, Request, accept
from pearl_sim.metrics import Tally, tally_of
from pearl_sim.rules import Frontier, Policy, candidates, plan, settle
from pearl_sim.timeline import PREFILL, Step, Timeline
from pearl_sim.timing import Timing, circumstance, delay_ns, draw_numbers, latency_ns, prefill_parts


class Devices(NamedTuple):
    """The two models' devices; each serves one request at a time, in order of arrival."""

    draft: simpy.Resource
    target: simpy.Resource


def simulate(policy: Policy, requests: Sequence[Request], timing: Timing, seed: int) -> list[Timeline]:
    """Return the timeline of every request, decoded one after another under `policy`.

    `timing` must cover the sizes that the policy uses; `seed` keys the latency draws, if there are any.
    """
    env = simpy.Environment()
    devices = Devices(simpy.Resource(env), simpy.Resource(env))
    timelines: list[Timeline] = [[] for _ in requests]
    for number, (request, timeline) in enumerate(zip(requests, timelines, strict=True)):
        draws = draw_numbers(seed, number, timing.target.draws, 2 * request.limit).tolist()
        env.process(_serve(env, devices, policy, request, timing, draws, timeline))
    env.run()
    return timelines


def tally(
    policy: Policy, requests: Sequence[Request], timing: Timing, seed: int, censored: Sequence[Censored] | None
) -> Tally:
    """Return what is counted on the timelines of `simulate`; `censored` is None where no record is truncated."""
    return tally_of(simulate(policy, requests, timing, seed), requests, censored)


def _serve(
    env: simpy.Environment,
    devices: Devices,
    policy: Policy,
    request: Request,
    timing: Timing,
    draws: list[list[int]],
    timeline: Timeline,
) -> Generator[simpy.Event, object, None]:
    """Hold the devices that the policy needs, read the prompt, decode."""
    needed = devices if policy.gamma else devices[1:]
    held = [device.request() for device in needed]
    yield from held
    yield from _prefill(env, policy, request, timing, timeline)
    yield from _decode(env, policy, request, timing, draws, timeline)
    for device, turn in zip(needed, held, strict=True):
        device.release(turn)


def _prefill(
    env: simpy.Environment, policy: Policy, request: Request, timing: Timing, timeline: Timeline
) -> Generator[simpy.Event, object, None]:
    start = int(env.now)
    draft_ns, score_ns = prefill_parts(policy, timing, request.prompt_tokens)
    reading = [env.timeout(ns) for ns in (draft_ns, score_ns) if ns]
    yield from reading
    timeline.append(Step(start, int(env.now), draft_ns, score_ns, *PREFILL, 0))


def _decode(
    env: simpy.Environment,
    policy: Policy,
    request: Request,
    timing: Timing,
    draws: list[list[int]],
    timeline: Timeline,
) -> Generator[simpy.Event, object, None]:
    # This loop is the simulator's whole cost: attributes are bound once, and a part of a round that does not
    # take place makes no event.
    timeout, record, runs = env.timeout, timeline.append, request.runs.tolist()
    prompt_tokens, limit, _ = request
    draft, target, hand_over, overlap_ppm, _ = timing
    draft_over_ns, target_over_ns, both_over_ns = hand_over
    frontier, chain, number = Frontier(1, 0), 1, 0
    draft_rested, target_rested = True, False  # the target reads the prompt for longer
    while frontier.verified < limit:
        start = int(env.now)
        verified, pending = frontier
        round = plan(policy, frontier)
        drafted, scored = round
        draft_draw, target_draw = draws[number] if draws else (0, 0)
        draft_ns = score_ns = 0
        if drafted and scored:
            draft_times = draft[circumstance(True, draft_rested)]
            target_times = target[circumstance(True, target_rested)]
            draft_ns = latency_ns(draft_times, drafted, prompt_tokens + verified + pending, draft_draw)
            score_ns = latency_ns(target_times, scored, prompt_tokens + verified, target_draw)
            if overlap_ppm:
                delay = delay_ns(draft_ns, score_ns, overlap_ppm)
                draft_ns, score_ns = draft_ns + delay, score_ns + delay
            drafting, scoring = timeout(draft_ns), timeout(score_ns)
            yield drafting
            yield scoring
            over_ns = both_over_ns
        elif drafted:
            draft_times = draft[circumstance(False, draft_rested)]
            draft_ns = latency_ns(draft_times, drafted, prompt_tokens + verified + pending, draft_draw)
            yield timeout(draft_ns)
            over_ns = draft_over_ns
        else:
            target_times = target[circumstance(False, target_rested)]
            score_ns = latency_ns(target_times, scored, prompt_tokens + verified, target_draw)
            yield timeout(score_ns)
            over_ns = target_over_ns
        if over_ns:
            yield timeout(over_ns)

        if pending == 0:
            chain = verified
        accepted = accept(runs[chain], chain, verified, candidates(frontier, round))
        record(Step(start, int(env.now), draft_ns, score_ns, frontier, round, accepted))
        frontier = settle(frontier, round, accepted)
        draft_rested, target_rested = drafted == 0, scored == 0
        number += 1
