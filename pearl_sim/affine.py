"""The affine law: what a forward takes, by its tokens and by the tokens before them.

It is made of +, * and //, which numpy does to arrays of 64-bit integers as Python does to whole numbers, as long as
they fit (prices.py sees to that, with floats in their place).  So this one text prices a single cost and a million.
"""

from typing import Any, NamedTuple, TypeAlias

Number: TypeAlias = Any
"""A number, or an array with that of each of many costs; whole, but where it is only to be seen how long it gets."""


class Slopes(NamedTuple):
    """By how many ps each model's part of one kind of round grows with a token of context."""

    draft_ps: int
    score_ps: int


class Forward(NamedTuple):
    """One model's forwards: `base` in ns, every other term in ps.

    per_sequence, per_token:     for each sequence, and each token of each sequence, that is computed.
    per_context_token:           for each token before them, once a forward.
    per_token_and_context_token: for each of those and each token computed.
    """

    base: Number
    per_sequence: Number = 0
    per_token: Number = 0
    per_context_token: Number = 0
    per_token_and_context_token: Number = 0

    def ns(self, tokens: int, batch: Number) -> Number:
        """Return the time of a forward over that many tokens of each sequence, before context counts."""
        return self.base + (self.per_sequence + self.per_token * tokens) * batch // 1000

    def slope_ps(self, tokens: int, batch: Number) -> Number:
        """Return by how much that grows with each token of context."""
        return (self.per_context_token + self.per_token_and_context_token * tokens) * batch


class Affine(NamedTuple):
    """A draft and a target; `draft_start` ns are what a chain of draft forwards takes beyond them, once."""

    draft: Forward
    target: Forward
    draft_start: Number = 0
    batch: Number = 1

    def chain(self, forwards: int) -> tuple[Number, Number]:
        """Return the time of so many one-token draft forwards in ns, and its slope in ps a token of context."""
        if forwards == 0:
            return 0, 0
        slope_ps = self.draft.slope_ps(1, self.batch)
        # The i-th forward of a chain also reads the i tokens written before it.
        own_ns = slope_ps * (forwards * (forwards - 1) // 2) // 1000
        return self.draft_start + forwards * self.draft.ns(1, self.batch) + own_ns, forwards * slope_ps

    def verify(self, positions: int) -> tuple[Number, Number]:
        """Return the time of one target forward over so many positions in ns, and its slope likewise."""
        return self.target.ns(positions, self.batch), self.target.slope_ps(positions, self.batch)

    def prefill(self, prompt_tokens: Number) -> tuple[Number, Number]:
        """Return the (draft's, target's) time to read a prompt, in ns."""
        return self.draft.ns(prompt_tokens, self.batch), self.target.ns(prompt_tokens, self.batch)
