"""The law of lockstep speculative decoding: two integers of state, two of action, one of outcome.

A request's state is its Frontier, what a round does is its Round, and the world answers with one number:
how many of the scored draft tokens the target accepts.  Autoregressive decoding, speculative decoding
(Leviathan et al. 2023), PEARL (Liu et al. 2025) and its ablations differ only in their Policy.  There is no
mode flag: PEARL's pre-verify is the round that starts with nothing pending.

Everything here is pure and made of integers; numba compiles these very functions for the kernel.
"""

from typing import NamedTuple


class Policy(NamedTuple):
    """How to decode: `gamma` draft tokens a round, and which half of PEARL is switched on.

    pre_verify:  with nothing pending, the target scores one position while the draft writes.
    post_verify: with drafts pending, the draft writes on while the target scores them.
    """

    gamma: int
    pre_verify: bool
    post_verify: bool


class Frontier(NamedTuple):
    """Where a request stands: `verified` tokens the target stands behind, then `pending` unchecked drafts."""

    verified: int
    pending: int


class Round(NamedTuple):
    """What the models do at the same time: the draft writes `draft` tokens, the target scores `score` positions.

    0 means that the model waits.
    """

    draft: int
    score: int


def plan(policy: Policy, frontier: Frontier) -> Round:
    """Return the next round, which depends on what is pending only.

    In every round something is scored or drafted, so decoding always advances.
    """
    if frontier.pending == 0:
        # With no draft at all (gamma 0) every policy is autoregressive decoding.
        return Round(policy.gamma, 1 if policy.pre_verify or policy.gamma == 0 else 0)
    if policy.post_verify:
        # Scoring the first fresh token while it is being drafted is what pre-verify buys here; the target
        # reads only what stands before it.
        return Round(policy.gamma, frontier.pending + 1 if policy.pre_verify else frontier.pending)
    return Round(0, frontier.pending + 1)


def candidates(frontier: Frontier, round: Round) -> int:
    """Return how many scored positions hold a draft token: the pending ones, and the first fresh one."""
    return min(round.score, frontier.pending + min(round.draft, 1))


def settle(frontier: Frontier, round: Round, accepted: int) -> Frontier:
    """Return the frontier after a round in which the target accepted the first `accepted` candidates.

    If a scored position is left over, the target writes that token itself (the correction, or the bonus of
    speculative decoding) and every later draft is dropped; otherwise the unchecked drafts stay pending.
    """
    if accepted < round.score:
        return Frontier(frontier.verified + accepted + 1, 0)
    return Frontier(frontier.verified + accepted, frontier.pending + round.draft - accepted)


def widest(policy: Policy) -> int:
    """Return the most positions that the target ever scores in one round."""
    serial = not policy.pre_verify and not policy.post_verify
    return policy.gamma + 1 if serial else max(policy.gamma, 1)
