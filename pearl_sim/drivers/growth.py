"""What growing context adds to the rounds of a walk, found once and then priced under any number of costs.

A model's part of a round takes b + slope * context // 1000, and costs that share slopes differ in b alone: d for the
draft, t for the target.  Let D and T be their second terms.  Rounds of one model are a plain sum; one of both takes
max(d + D, t + T) = t + T + max(0, (D - T) - (t - d)): with the D - T of a request in ascending order, all its rounds
are one binary search for t - d and two subtractions.  Whole numbers throughout: it is `price` of kernel.py, `==`.

Only contention, which delays every single round by a rounded part of itself, is added up round by round.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
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
    """What context adds to one kind of round.

    first:   [request + 1], where the rounds of each request begin, and where the last one's end.
    held:    [round], one request after another: the verified tokens of prompt and output before each.
    pending: the drafts before each, which the draft reads too.
    """

    first: Integers
    held: Integers
    pending: int
    slopes: Slopes

    @property
    def draft_ns(self) -> Integers:
        """Return [round], what context adds to the draft's part; all 0 where it waits."""
        return self.slopes.draft_ps * (self.held + self.pending) // 1000

    @property
    def score_ns(self) -> Integers:
        """Return [round], what context adds to the target's part; all 0 where it waits."""
        return self.slopes.score_ps * self.held // 1000

    @cached_property
    def sums(self) -> tuple[Integers, Integers]:
        """Return [request], the sums of `draft_ns` and of `score_ns`."""
        nothing = np.zeros(len(self.first) - 1, np.int64)
        draft = np.diff(_running(self.draft_ns)[self.first]) if self.slopes.draft_ps else nothing
        score = np.diff(_running(self.score_ns)[self.first]) if self.slopes.score_ps else nothing
        return draft, score

    @cached_property
    def ahead(self) -> tuple[Integers, Integers]:
        """Return [round], by how much more the draft's part grows, in order within each request; their running sums."""
        difference = self.draft_ns - self.score_ns
        # One sort for all: each request has a range of values to itself.
        width = int(np.ptp(difference)) + 1 if len(difference) else 1
        shift = np.repeat(np.arange(len(self.first) - 1) * width, np.diff(self.first))
        ordered = np.sort(difference + shift) - shift
        return ordered, _running(ordered)


def growth(walked: Walk, pending: int, slopes: Slopes) -> Growth:
    """Return what these slopes add to the rounds that begin with so many drafts pending; the walk must have rounds."""
    return Growth(*_contexts(walked, pending), pending, slopes)


@lru_cache(maxsize=8)
def _contexts(walked: Walk, pending: int) -> tuple[Integers, Integers]:
    """Return `first` and `held` of Growth."""
    which = np.flatnonzero(walked.rounds[:, 1] == pending)
    rounds = np.cumsum(walked.counts.sum(axis=1))
    first = np.searchsorted(which, np.append(0, rounds))
    held = walked.rounds[which, 0] + np.repeat(walked.prompt_tokens, np.diff(first))
    return first, held


def added(
    grown: Growth, draft_ns: Integers, score_ns: Integers, overlap_ppm: Integers
) -> tuple[Floats, Floats, Floats]:
    """Return what context adds: [cost, request] to the rounds, [cost] to the draft's and the target's part of them.

    draft_ns, score_ns, overlap_ppm: [cost], the parts before context counts, and contention.
    All times must lie below 2^53, so that floats hold them.
    """
    draft_more, score_more = (sums.astype(float) for sums in grown.sums)
    shape = len(draft_ns), len(grown.first) - 1
    if not (draft_ns.any() and score_ns.any()):  # one of the models waits
        return np.broadcast_to(draft_more + score_more, shape), draft_more.sum(), score_more.sum()
    time_ns, delays_ns = np.zeros(shape), np.zeros(len(draft_ns))
    searched = overlap_ppm == 0
    searched &= searched.sum() > FEW
    if searched.any():
        which, behind_ns = np.flatnonzero(searched), score_ns - draft_ns
        _by_search(grown.first, *grown.ahead, grown.sums[1], which, behind_ns, time_ns)
    if not searched.all():
        which, rounds = np.flatnonzero(~searched), (grown.first, grown.draft_ns, grown.score_ns)
        _by_round(*rounds, which, draft_ns, score_ns, overlap_ppm, time_ns, delays_ns)
    return time_ns, draft_more.sum() + delays_ns, score_more.sum() + delays_ns


def _running(values: Integers) -> Integers:
    """Return the running sums, from 0."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])


def _search(
    first: Integers,
    ahead: Integers,
    running: Integers,
    score_more: Integers,
    costs: Integers,
    behind_ns: Integers,
    time_ns: Floats,
) -> None:
    """Set time_ns[cost, request] to what context adds to its rounds, where nothing is lost by contention.

    behind_ns: [cost], by how much the target's part is the longer one without context.
    score_more: [request], what context adds to the target's parts.
    """
    for cost in costs:
        behind = behind_ns[cost]
        for request in range(len(first) - 1):
            low, end = first[request], first[request + 1]
            # Where the draft was the longer one without context, that is not added.
            more = score_more[request] - max(-behind, 0) * (end - low)
            if low < end and behind < ahead[end - 1]:
                high = low if behind < ahead[low] else end
                while low < high:
                    middle = (low + high) // 2
                    if behind < ahead[middle]:
                        high = middle
                    else:
                        low = middle + 1
                more += running[end] - running[low] - behind * (end - low)
            time_ns[cost, request] = more


def _add(
    first: Integers,
    draft_grown: Integers,
    score_grown: Integers,
    costs: Integers,
    draft_ns: Integers,
    score_ns: Integers,
    overlap_ppm: Integers,
    time_ns: Floats,
    delays_ns: Floats,
) -> None:
    """Set time_ns[cost, request] to what context adds, delays_ns[cost] to what contention alone adds to each part."""
    for cost in costs:
        draft, score, ppm = draft_ns[cost], score_ns[cost], overlap_ppm[cost]
        # What the round takes without context.
        longer, delay = max(draft, score), delay_ns(draft, score, ppm)
        lost = 0
        for request in range(len(first) - 1):
            more = delays = 0
            for index in range(first[request], first[request + 1]):
                draft_part, score_part = draft + draft_grown[index], score + score_grown[index]
                more += max(draft_part, score_part) - longer
                if ppm:
                    delays += delay_ns(draft_part, score_part, ppm) - delay
            time_ns[cost, request] = more + delays
            lost += delays
        delays_ns[cost] = lost


_by_search, _by_round = compiled(_search), compiled(_add, delay_ns)
