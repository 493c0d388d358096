"""What became of the tokens that each round drafted: accepted, rejected, or dropped before anyone looked."""

from dataclasses import dataclass, field

from pearl_sim.rules import candidates
from pearl_sim.timeline import Timeline


@dataclass
class Draft:
    """The tokens one round drafted, at output positions `first` and on; the first `accepted` of them were accepted.

    scored_in: the rounds in which the target scored some of them.
    """

    round: int
    first: int
    tokens: int
    accepted: int = 0
    rejected: int = 0
    scored_in: list[int] = field(default_factory=list)

    @property
    def fates(self) -> str:
        """Return a character a token: + accepted, x rejected, . dropped (or left over when the request was done)."""
        return "+" * self.accepted + "x" * self.rejected + "." * (self.tokens - self.accepted - self.rejected)


def drafts(timeline: Timeline) -> list[Draft]:
    """Return the drafts of a timeline, in the order of their rounds."""
    found: list[Draft] = []
    live: list[Draft] = []
    for number, step in enumerate(timeline):
        verified, pending = step.frontier
        live = [draft for draft in live if pending and draft.first + draft.tokens > verified]
        if step.round.draft:
            live.append(Draft(number, verified + pending, step.round.draft))
            found.append(live[-1])
        checked = candidates(step.frontier, step.round)
        for draft in live:
            start, stop = max(draft.first, verified), min(draft.first + draft.tokens, verified + checked)
            if start < stop:
                draft.scored_in.append(number)
                draft.accepted += max(0, min(stop, verified + step.accepted) - start)
                draft.rejected += step.accepted < checked and start <= verified + step.accepted < stop
    return found
