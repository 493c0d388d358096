"""What each device did when, token by token: a timeline as boxes on two lanes, draft and target.

A draft token's fate is known only later: it is followed to the round in which it was checked, or dropped unseen.
"""

from typing import Literal, NamedTuple, TypeAlias

from pearl_sim.drafts import drafts
from pearl_sim.rules import settle
from pearl_sim.timeline import Timeline

Fate: TypeAlias = Literal["accepted", "rejected", "wasted", "pending", "verifies", "hand-over", "prefill"]
"""accepted, rejected: checked by the target.  wasted: dropped behind a rejected one, never checked.
pending: still unchecked when the timeline ends.  verifies: a target forward."""


class Box(NamedTuple):
    """What one lane did from `start` to `stop`, in nanoseconds.

    position: place in the output of the draft token, or of the first position that the target scores.
    tokens:   1 for a draft token; for a target forward, the tokens that it commits to the output.
    """

    lane: Literal["draft", "target"]
    start: int
    stop: int
    round: int
    position: int
    tokens: int
    fate: Fate


def boxes(timeline: Timeline) -> list[Box]:
    """Return what was on both lanes, round by round; boxes of no duration are left out."""
    fates = _fates(timeline)
    found = []
    for number, step in enumerate(timeline):
        verified, pending = step.frontier
        prefill = number == 0
        if step.round.draft:
            first, count = verified + pending, step.round.draft
            edges = [step.start + step.draft_ns * i // count for i in range(count + 1)]
            for i in range(count):
                found.append(Box("draft", edges[i], edges[i + 1], number, first + i, 1, fates[number, first + i]))
        elif prefill:
            found.append(Box("draft", step.start, step.start + step.draft_ns, number, 0, 0, "prefill"))
        if step.round.score:
            committed = step.accepted + (step.accepted < step.round.score)
            fate: Fate = "prefill" if prefill else "verifies"
            found.append(Box("target", step.start, step.start + step.score_ns, number, verified, committed, fate))
        over = step.start + max(step.draft_ns, step.score_ns)
        found.append(Box("target", over, step.stop, number, verified, 0, "hand-over"))
    return [box for box in found if box.stop > box.start]


def _fates(timeline: Timeline) -> dict[tuple[int, int], Fate]:
    """Return (round, position) -> fate of every draft token."""
    accepted: Fate = "accepted"
    rejected: Fate = "rejected"
    fates: dict[tuple[int, int], Fate] = {}
    last = timeline[-1]
    verified, pending = settle(last.frontier, last.round, last.accepted)
    waiting = set(range(verified, verified + pending))
    # Of a position that was drafted more than once, only the newest draft can still be waiting.
    for draft in reversed(drafts(timeline)):
        told = [accepted] * draft.accepted + [rejected] * draft.rejected
        for place in range(draft.tokens):
            position, fate = draft.first + place, told[place] if place < len(told) else None
            fates[draft.round, position] = fate or ("pending" if position in waiting else "wasted")
            waiting.discard(position)
    return fates
