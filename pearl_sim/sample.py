"""How points are simulated: together where they differ in price only, else one by one.

What lockstep decoding does never depends on the clock.  So points that differ only in what a constant or affine cost
charges make the same rounds: these are walked once, and priced in arrays.  Every other point is simulated on its own,
by either driver, and gives a sample of the same shape.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pearl_sim import prices, theory, together
from pearl_sim.acceptance import Iid
from pearl_sim.cost import ConstantCost, Cost
from pearl_sim.drivers import kernel, sim
from pearl_sim.drivers.walk import Walk, walk
from pearl_sim.point import Point, Source, censored_of, requests_of
from pearl_sim.policies import autoregressive
from pearl_sim.rules import Policy, Round
from pearl_sim.scenario import Scenario
from pearl_sim.timing import mean_round_ns, prefill_parts

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Whole: TypeAlias = Integers | Floats

BLOCK = 1 << 16
"""Times of requests that are worked on at once, so that they stay in the processor's cache."""


class Sample(NamedTuple):
    """What one policy's simulation gave at some points that differ in price only.

    tokens:   [request], output tokens.
    time_ns:  [point, request]; draft_ns, score_ns: [point], summed over requests; whole numbers, be they floats.
    forwards, drafted, kept, corrections: sums over requests, the same at every point.
    """

    tokens: Integers
    time_ns: Whole
    draft_ns: Whole
    score_ns: Whole
    forwards: int
    drafted: int
    kept: int
    corrections: int
    depths: list[tuple[int, int, int]]
    unknown_rounds: float | None


class Known(NamedTuple):
    """What theory needs to know of the same points: [point] mean ns of a round and of prefill; seconds of a forward.

    draft_s, target_s: only under constant costs.
    """

    round_ns: Callable[[theory.Work], Floats | None]
    prefill_ns: Callable[[], Floats]
    draft_s: Floats | None
    target_s: Floats | None


def samples(
    scenario: Scenario, points: range, places: dict[str, Integers], members: Integers, driver: str | None
) -> Iterator[tuple[Integers, str, list[tuple[Sample, Known]]]]:
    """Yield some of `members`, the simulator used, and what it gave: autoregressive decoding, then each policy.

    `members` are places in `points` that differ in price only; `places` say where each lies on the axes.  Driver None
    takes the kernel, and SimPy where times could pass the end of the kernel's clock; OverflowError if it was asked for.
    """
    point = scenario.point(points[members[0]])
    policies = [autoregressive(), *point.policy.chosen().values()]
    if prices.can_share(point.cost) and driver != "sim":
        costs = scenario.costs(point.cost, {key: at[members] for key, at in places.items()}, len(members))
        walks = [_walked(policy, point.source, rounds=costs.grow) for policy in policies]
        fits = np.all([together.fitting(walked, costs) for walked in walks], axis=0)
        members, fitting, costs = members[~fits], members[fits], costs.taken(np.flatnonzero(fits))
        step = max(1, BLOCK // len(walks[0].limits))
        for group in costs.by_slopes() if len(fitting) else ():
            rates = [together.rates(walked, costs.taken(group)) for walked in walks]
            for start in range(0, len(group), step):
                block = slice(start, start + step)
                yield fitting[group[block]], "kernel", [_together(each, block, point.cost) for each in rates]
    for member in members:
        own = scenario.point(points[member])
        used = driver or "kernel"
        try:
            found = [_alone(own, policy, used) for policy in policies]
        except OverflowError:
            if driver:
                raise
            used = "sim"
            found = [_alone(own, policy, used) for policy in policies]
        yield np.array([member]), used, found


@lru_cache(maxsize=8)
def _walked(policy: Policy, source: Source, rounds: bool) -> Walk:
    return walk(policy, requests_of(source), censored_of(source), rounds)


def _together(rates: together.Rates, block: slice, cost: Cost) -> tuple[Sample, Known]:
    """Return a block of the costs at which a walk was priced; `cost` is one of them."""
    walked, policy = rates.walked, rates.walked.policy
    costs = rates.costs.taken(np.arange(rates.costs.count)[block])

    def round_ns(work: theory.Work) -> Floats | None:
        return together.round_ns(costs, policy, Round(work.draft, work.score))

    def prefill_ns() -> Floats:
        return costs.prefill_times(policy, walked.prompt_tokens[:1]).round_ns[:, 0].astype(float)

    bases = [part / 1e9 for part in costs.parts(Round(1, 1))] if isinstance(cost, ConstantCost) else (None, None)
    return _counted(walked, *together.price(rates, block)), Known(round_ns, prefill_ns, *bases)


def _alone(point: Point, policy: Policy, driver: str) -> tuple[Sample, Known]:
    """Return one point simulated, whatever its cost."""
    timing = point.cost.timing(policy)
    if driver == "sim":
        source = point.source
        if policy.gamma == 0 and point.law:
            # Without drafts, what would be accepted does not matter, and points that differ in that share the answer.
            source = source._replace(acceptance=Iid(alpha=0.0), gamma=0)
        sample = _by_events(point.cost, policy, source, point.seed)
    else:
        walked = _walked(policy, point.source, not timing.fixed)
        time_ns, draft_ns, score_ns = kernel.price(walked, timing, point.seed)
        sample = _counted(walked, time_ns[None], draft_ns.sum(keepdims=True), score_ns.sum(keepdims=True))

    def round_ns(work: theory.Work) -> Floats | None:
        mean = mean_round_ns(timing, work.draft, work.score)
        return None if mean is None else np.array([mean])

    prefill = max(prefill_parts(policy, timing, point.workload.prompt_tokens or 0))
    constant = point.cost if isinstance(point.cost, ConstantCost) else None
    return sample, Known(
        round_ns,
        lambda: np.array([float(prefill)]),
        np.array([constant.draft / 1e9]) if constant else None,
        np.array([constant.target / 1e9]) if constant else None,
    )


@lru_cache(maxsize=4)
def _by_events(cost: Cost, policy: Policy, source: Source, seed: int) -> Sample:
    totals, depths, unknown = sim.tally(policy, requests_of(source), cost.timing(policy), seed, censored_of(source))
    # Python's own integers, where times are too long for 64 bits.
    longest = sum(max(request[1:4]) for request in totals)
    tokens, time_ns, draft_ns, score_ns, *counts = np.array(totals, np.int64 if longest <= kernel.LARGEST else object).T
    forwards, drafted, kept, corrections = (int(count.sum()) for count in counts)
    return Sample(
        tokens.astype(np.int64),
        time_ns[None],
        draft_ns.sum(keepdims=True),
        score_ns.sum(keepdims=True),
        forwards,
        drafted,
        kept,
        corrections,
        depths,
        unknown,
    )


def _counted(walked: Walk, time_ns: Whole, draft_ns: Whole, score_ns: Whole) -> Sample:
    drafted, scored = walked.work
    each = walked.counts.sum(axis=0)
    return Sample(
        walked.limits,
        time_ns,
        draft_ns,
        score_ns,
        int(each @ (scored > 0)),
        int(each @ drafted),
        int(walked.kept.sum()),
        int(walked.corrections.sum()),
        walked.depths,
        walked.unknown_rounds,
    )
