"""What growing context adds to the rounds of a walk, found once and then priced under any number of costs.

A model's part of a round takes b + slope * context // 1000, and costs that share slopes differ in b alone: d for the
draft, t for the target.  Let D and T be their second terms.  Rounds of one model are a plain sum; one of both takes
max(d + D, t + T) = t + T + max(0, (D - T) - (t - d)): with the D - T of a request in ascending order, all its rounds
are one binary search for t - d and two subtractions.  Whole numbers throughout: it is `price` of kernel.py, `==`.

Only contention, which delays every single round by a rounded part of itself, is added up round by round.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pearl_sim.affine import Slopes
from pearl_sim.drivers.compiled import compiled
from pearl_sim.drivers.walk import Integers, Walk
from pearl_sim.timing import delay_ns

Floats: TypeAlias = NDArray[np.float64]

FEW = 32
"""For so many costs, adding up round by round is faster than bringing the rounds in order first."""


@dataclass(frozen=True, eq=False)
class Growth:
    """What context adds to one kind of round, in ns.

    first:      [request + 1], where the rounds of each request begin, and where the last one's end.
    draft_ns, score_ns: [round], one request after another; all 0 where the model waits.
    """

    first: Integers
    draft_ns: Integers
    score_ns: Integers

    @cached_property
    def sums(self) -> tuple[Integers, Integers]:
        """Return [request], the sums of `draft_ns` and of `score_ns`."""
        draft, score = (np.diff(_from_zero(part_ns)[self.first]) for part_ns in (self.draft_ns, self.score_ns))
        return draft, score

    @cached_property
    def ahead(self) -> tuple[Integers, Integers]:
        """Return [round], by how much more the draft's part grows, in order within each request; [round + 1] sums."""
        difference = self.draft_ns - self.score_ns
        # One sort for all: each request has a range of values to itself.
        width = int(np.ptp(difference)) + 1 if len(difference) else 1
        shift = np.repeat(np.arange(len(self.first) - 1) * width, np.diff(self.first))
        ordered = np.sort(difference + shift) - shift
        return ordered, _from_zero(ordered)


def growth(walked: Walk, pending: int, slopes: Slopes) -> Growth:
    """Return what these slopes add to the rounds that begin with so many drafts pending; the walk must have rounds."""
    request = np.repeat(np.arange(len(walked.limits)), walked.counts.sum(axis=1))
    which = np.flatnonzero(walked.rounds[:, 1] == pending)
    request = request[which]
    held = walked.prompt_tokens[request] + walked.rounds[which, 0]
    return Growth(
        np.searchsorted(request, np.arange(len(walked.limits) + 1)),
        slopes.draft_ps * (held + pending) // 1000,
        slopes.score_ps * held // 1000,
    )


def overlapped(
    grown: Growth, draft_ns: Integers, score_ns: Integers, overlap_ppm: Integers
) -> tuple[Floats, Floats, Floats]:
    """Return what rounds of both models take: [cost, request] in all, [cost] the draft and the target.

    draft_ns, score_ns, overlap_ppm: [cost], the parts before context counts, and contention.
    All sums must lie below 2^53, so that floats hold them.
    """
    rounds, alone = np.diff(grown.first), overlap_ppm == 0
    time_ns = np.zeros((len(draft_ns), len(rounds)))
    delays_ns = np.zeros(len(draft_ns))
    if alone.sum() <= FEW:
        alone[:] = False
    searched, added = np.flatnonzero(alone), np.flatnonzero(~alone)
    if len(searched):
        _by_search(grown.first, *grown.ahead, searched, score_ns - draft_ns, time_ns)
        time_ns[searched] += score_ns[searched, None] * rounds + grown.sums[1]
    if len(added):
        terms = grown.first, grown.draft_ns, grown.score_ns
        _by_round(*terms, added, draft_ns, score_ns, overlap_ppm, time_ns, delays_ns)
    draft, score = (ns * rounds.sum() + sums.sum() for ns, sums in zip((draft_ns, score_ns), grown.sums, strict=True))
    return time_ns, draft + delays_ns, score + delays_ns


def _from_zero(values: Integers) -> Integers:
    """Return the running sums, from 0."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])


def _search(
    first: Integers, ahead: Integers, sums: Integers, costs: Integers, behind_ns: Integers, time_ns: Floats
) -> None:
    """Set time_ns[cost, request] to how far the draft's parts are the longer ones, summed over its rounds."""
    for cost in costs:
        behind = behind_ns[cost]
        for request in range(len(first) - 1):
            low, end = first[request], first[request + 1]
            if low == end or ahead[end - 1] <= behind:
                continue
            high = end if ahead[low] <= behind else low
            while low < high:
                middle = (low + high) // 2
                if ahead[middle] <= behind:
                    low = middle + 1
                else:
                    high = middle
            time_ns[cost, request] = sums[end] - sums[low] - behind * (end - low)


def _add(
    first: Integers,
    draft_more: Integers,
    score_more: Integers,
    costs: Integers,
    draft_ns: Integers,
    score_ns: Integers,
    overlap_ppm: Integers,
    time_ns: Floats,
    delays_ns: Floats,
) -> None:
    """Set time_ns[cost, request] to what its rounds take, delays_ns[cost] to what each model loses by contention."""
    for cost in costs:
        draft, score, ppm = draft_ns[cost], score_ns[cost], overlap_ppm[cost]
        lost = 0
        for request in range(len(first) - 1):
            longer = delays = 0
            for index in range(first[request], first[request + 1]):
                draft_part, score_part = draft + draft_more[index], score + score_more[index]
                longer += max(draft_part, score_part)
                if ppm:
                    delays += delay_ns(draft_part, score_part, ppm)
            time_ns[cost, request] = longer + delays
            lost += delays
        delays_ns[cost] = lost


_by_search, _by_round = compiled(_search), compiled(_add, delay_ns)
