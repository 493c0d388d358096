"""Closed forms: what decoding should take if acceptance follows a law.  The oracle of the simulator.

It shares no code with the rules.  Call S(k) the probability that a fresh chain of drafts is accepted for k or
more tokens in a row.  Every policy is a renewal process: from one fresh chain to the next,

    a round that lies `reach` tokens down the chain takes place with probability S(reach);
    the chain yields its accepted tokens, at most `cap`, and one token that the target writes:
    S(0) + S(1) + ... + S(cap) tokens.

    autoregressive              target 1              at 0                         cap 0
    speculative decoding        draft g; target g+1   at 0                         cap g
    PEARL                       draft g with target 1 at 0, with target g at 1 + j g   no cap    (g > 1)
    PEARL without pre-verify    draft g at 0, draft g with target g at j g         no cap
    PEARL without post-verify   draft g with target 1 at 0; target g at 1          cap g    (g > 1)

for j = 0, 1, 2, ...  At g = 1 pre-verify leaves nothing pending: one round a token, cap 0.

Sources: speculative decoding, Leviathan et al. 2023 (equation 1); PEARL, Liu et al. 2025.  The long-run speed
is tokens over time of one cycle; for a request of given length the renewal equation gives the exact mean.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl_sim.acceptance import Chains, Floats, Iid, Survival
from pearl_sim.rules import Policy

ENDLESS = 1 << 17
"""A chain without a cap is followed at most this far: relative error gamma / 2^17 where it never ends."""

NEGLIGIBLE = 1e-15

SETTLED, SETTLED_EVERY = 1e-11, 64


class Work(NamedTuple):
    """What the models do in one round of a cycle: tokens drafted, positions scored, whether a draft is checked."""

    draft: int
    score: int
    checks: bool


class Cycle(NamedTuple):
    """A policy from one fresh chain to the next: what takes place first, then every `stride` tokens."""

    first: tuple[tuple[int, Work], ...]
    again: tuple[int, int, Work] | None
    cap: int | None


RoundTime = Callable[[Work], float]
"""Mean duration of a round, in any unit."""


def cycle(policy: Policy) -> Cycle:
    """Return the table above for `policy`; `first` holds (reach, work), `again` (reach of j = 0, stride, work)."""
    gamma, pre, post = policy
    if gamma == 0:
        return Cycle(((0, Work(0, 1, False)),), None, 0)
    together = Work(gamma, 1, True)
    if pre and gamma == 1:
        return Cycle(((0, together),), None, 0)
    if pre and post:
        return Cycle(((0, together),), (1, gamma, Work(gamma, gamma, True)), None)
    if pre:
        return Cycle(((0, together), (1, Work(0, gamma, True))), None, gamma)
    if post:
        return Cycle(((0, Work(gamma, 0, False)),), (0, gamma, Work(gamma, gamma, True)), None)
    return Cycle(((0, Work(gamma, 0, False)), (0, Work(0, gamma + 1, True))), None, gamma)


def visits(policy: Policy, length: int) -> list[tuple[Work, NDArray[np.int64]]]:
    """Return each kind of round with the reaches below `length` at which it takes place."""
    table = cycle(policy)
    kinds = [(work, np.array([reach])) for reach, work in table.first if reach < length]
    if table.again:
        reach, stride, work = table.again
        kinds.append((work, np.arange(reach, length, stride)))
    return kinds


def tokens_per_cycle(policy: Policy, survival: Survival) -> float:
    """Return the mean number of tokens from one fresh chain to the next."""
    cap = cycle(policy).cap
    return float(survival(np.arange(_end(survival) if cap is None else cap + 1)).sum())


def work_per_cycle(policy: Policy, survival: Survival) -> list[tuple[Work, float]]:
    """Return each kind of round with the mean number of them from one fresh chain to the next."""
    return [(work, float(survival(reaches).sum())) for work, reaches in visits(policy, _end(survival))]


def time_per_cycle(policy: Policy, survival: Survival, round_time: RoundTime) -> float:
    """Return the mean time from one fresh chain to the next, in the unit of `round_time`."""
    return sum(rounds * round_time(work) for work, rounds in work_per_cycle(policy, survival))


def rounds_per_cycle(policy: Policy, survival: Survival) -> float:
    """Return the mean number of target forwards from one fresh chain to the next."""
    return time_per_cycle(policy, survival, _one_forward)


def tokens_per_round(policy: Policy, survival: Survival) -> float:
    """Return tokens per target forward over a long text."""
    return tokens_per_cycle(policy, survival) / rounds_per_cycle(policy, survival)


def round_time(t_draft: float, t_target: float, sync: float = 0.0) -> RoundTime:
    """Return the duration of rounds whose models take constant times, each on its own device."""
    return lambda work: max(work.draft * t_draft, t_target if work.score else 0.0) + (sync if work.checks else 0.0)


def speed(policy: Policy, survival: Survival, duration: RoundTime) -> float:
    """Return tokens per unit of time over a long text."""
    return tokens_per_cycle(policy, survival) / time_per_cycle(policy, survival, duration)


def steady_speed(policy: Policy, chains: Sequence[Chains], duration: RoundTime) -> float:
    """Return tokens per unit of time over long requests of equal length, of every kind in `chains`."""
    return 1 / sum(number * duration(work) for work, number in steady_rounds(policy, chains).items())


def steady_rounds(policy: Policy, chains: Sequence[Chains]) -> dict[Work, float]:
    """Return the mean number of rounds of each kind per token, over long requests of every kind in `chains`."""
    rounds = dict.fromkeys((work for work, _ in visits(policy, 2)), 0.0)
    for kind in chains:
        survival = _mixed(policy, kind)
        share = kind.weight / tokens_per_cycle(policy, survival)
        for work, reaches in visits(policy, _end(survival)):
            rounds[work] += share * float(survival(reaches).sum())
    return rounds


def best_gamma(
    policy_of: Callable[[int], Policy],
    survival: Survival,
    t_draft: float,
    t_target: float,
    sync: float = 0.0,
    max_gamma: int = 64,
) -> int:
    """Return the gamma in 1..max_gamma of highest speed, the smallest of equals.

    The paper's theorem 1 says gamma = t_target / t_draft for PEARL; that holds where the ratio is whole.
    """
    duration = round_time(t_draft, t_target, sync)
    speeds = [speed(policy_of(gamma), survival, duration) for gamma in range(1, max_gamma + 1)]
    top = max(speeds)
    return next(gamma for gamma, found in enumerate(speeds, 1) if math.isclose(found, top, rel_tol=1e-12))


def pearl_ceiling(gamma: int, t_draft: float, t_target: float, sync: float = 0.0) -> float:
    """Return the tokens per unit of time that PEARL cannot exceed, whatever is accepted: gamma a round."""
    return gamma / (max(gamma * t_draft, t_target) + sync)


def request_time(policy: Policy, chains: Sequence[Chains], duration: RoundTime, tokens: int) -> float:
    """Return the exact mean time to write `tokens` tokens from a fresh chain, the last round to its end."""
    return sum(number * duration(work) for work, number in request_rounds(policy, chains, tokens).items())


def request_rounds(policy: Policy, chains: Sequence[Chains], tokens: int) -> dict[Work, float]:
    """Return the exact mean number of rounds of each kind that a request of `tokens` tokens takes from a fresh chain.

    f(r) = sum over reach < r of S(reach) + sum over n < r of P(n tokens) * f(r - n), for a chain after a correction
    and one after a bonus token.
    """
    weights = np.array([kind.weight for kind in chains])
    kinds = visits(policy, tokens)
    cap = cycle(policy).cap
    longest = tokens if cap is None else min(cap, tokens)
    depth = np.arange(longest + 2)

    def first_chain(survive: Callable[[Chains], Survival]) -> Floats:
        """Return [kind of request, r, kind of round]: the mean rounds of one chain when r tokens are left."""
        at_reach = np.zeros((len(chains), tokens + 1, len(kinds)))
        for work, (_, reaches) in enumerate(kinds):
            at_reach[:, reaches + 1, work] = [survive(kind)(reaches) for kind in chains]
        return np.cumsum(at_reach, axis=1)

    survivals: list[Callable[[Chains], Survival]] = [lambda kind: kind.after_correction]
    if any(kind.after_bonus != kind.after_correction for kind in chains):
        survivals.append(lambda kind: kind.after_bonus)
    survived = [np.stack([survive(kind)(depth) for kind in chains]) for survive in survivals]
    found = [first_chain(survive) for survive in survivals]
    from_correction, from_bonus = found[0], found[-1]
    # P(exactly k accepted, then a correction), for k = 0.. ; what survives the cap ends in a bonus token.
    ends = [(S[:, :-1] - S[:, 1:])[:, : longest + 1 if cap is None else cap] for S in survived]
    support = max((int(np.max(np.nonzero(end.max(axis=0) > NEGLIGIBLE)[0], initial=-1)) + 1 for end in ends), default=0)
    backwards = [np.ascontiguousarray(end[:, :support][:, None, ::-1]) for end in ends]
    window = 1 + max(support, 0 if cap is None else cap + 1, 2 * policy.gamma)
    for left in range(1, tokens + 1):
        reach_back = min(support, left - 1)
        earlier = from_correction[:, left - reach_back : left]
        for rounds, end, survival in zip(found, backwards, survived, strict=True):
            rounds[:, left] += (end[:, :, support - reach_back :] @ earlier)[:, 0]
            if cap is not None and left > cap + 1:
                rounds[:, left] += survival[:, cap, None] * from_bonus[:, left - cap - 1]
        if left % SETTLED_EVERY == 0 and left > window:
            # Once every token more has taken the same rounds for longer than a chain lasts, it always will.
            steps = np.diff(from_correction[:, left - window : left + 1], axis=1)
            if (np.ptp(steps, axis=1) <= SETTLED * steps.sum(axis=2).max(axis=1, keepdims=True)).all():
                from_correction[:, tokens] = from_correction[:, left] + steps[:, -1] * (tokens - left)
                break
    means = weights @ from_correction[:, tokens]
    return {work: float(mean) for (work, _), mean in zip(kinds, means, strict=True)}


def pearl_tokens_per_round(alpha: float, gamma: int) -> float:
    """Return PEARL's tokens per target forward for i.i.d. acceptance.

    1 / (1 - alpha) tokens between corrections, over 1 + alpha / (1 - alpha^gamma) rounds.
    """
    if gamma <= 1:
        return 1.0
    if alpha == 1:
        return float(gamma)
    return 1 / ((1 - alpha) * (1 + alpha / (1 - alpha**gamma)))


def speculative_tokens_per_round(alpha: float, gamma: int) -> float:
    """Return speculative decoding's tokens per target forward for i.i.d. acceptance (Leviathan et al. 2023)."""
    return gamma + 1.0 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def note_pearl_speed(alpha: float, gamma: int, t_draft: float, t_target: float) -> float:
    """Return the reading note's *estimate* of PEARL's tokens per unit of time.  It is wrong; see docs/model.md.

    E[n] = 1 - a + a^2 / (1 - a) over E[t] = T (1 - a) + T a (1 - a) / (1 - a^gamma)^2.  It weights the number of
    post-verify rounds by a^(j gamma) (1 - a), which does not sum to one, and so it can promise more than the
    ceiling.  Kept because it is what this project set out to check.
    """
    if alpha == 1:
        return math.inf
    duration = max(gamma * t_draft, t_target)
    tokens = 1 - alpha + alpha**2 / (1 - alpha)
    return tokens / (duration * (1 - alpha) * (1 + alpha / (1 - alpha**gamma) ** 2))


def note_speculative_speed(alpha: float, gamma: int, t_draft: float, t_target: float) -> float:
    """Return the reading note's *estimate* of speculative decoding's tokens per unit of time, a k / (k t_g + t_v)."""
    return alpha * gamma / (gamma * t_draft + t_target)


def _one_forward(work: Work) -> float:
    return 1.0 if work.score else 0.0


def _mixed(policy: Policy, kind: Chains) -> Survival:
    """Return the survival of the policy's chains in the long run, some after a correction, some after a bonus.

    The share b of chains after a bonus solves b = (1 - b) C(cap) + b B(cap), C and B being the survival after
    a correction and after a bonus.
    """
    cap = cycle(policy).cap
    if not cap:
        return kind.after_correction
    end = np.array([cap])
    after_correction, after_bonus = float(kind.after_correction(end)[0]), float(kind.after_bonus(end)[0])
    # Where no chain after a correction ever survives, no bonus is ever reached.
    share = after_correction / (1 + after_correction - after_bonus) if after_correction else 0.0
    return lambda k: (1 - share) * kind.after_correction(k) + share * kind.after_bonus(k)


@lru_cache(maxsize=1024)
def _end(survival: Survival) -> int:
    """Return a depth past which nothing survives to speak of."""
    length = 64
    while length < ENDLESS and survival(np.array([length]))[0] > NEGLIGIBLE:
        length *= 2
    return length


def iid(alpha: float) -> Survival:
    """Return the survival function of i.i.d. acceptance."""
    return Iid(alpha=alpha).survival
