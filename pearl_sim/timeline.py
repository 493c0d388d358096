"""The record every driver emits, simulated or real: one Step a round, compared with `==`."""

from typing import NamedTuple, TypeAlias

from pearl_sim.rules import Frontier, Round

PREFILL = (Frontier(0, 0), Round(0, 1))
"""Prefill is the round in which the target writes token 0 and no draft is checked; decoding starts after it."""


class Step(NamedTuple):
    """One round of one request, in nanoseconds.

    From `start`, the draft is busy for `draft_ns` and the target for `score_ns`; hand-over ends at `stop`.
    The round began at `frontier`, did `round`, and the target accepted `accepted` drafts.
    """

    start: int
    stop: int
    draft_ns: int
    score_ns: int
    frontier: Frontier
    round: Round
    accepted: int


Timeline: TypeAlias = list[Step]
"""The rounds of one request in order, prefill first."""
