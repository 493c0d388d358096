"""The first half of the kernel: a walk over requests makes every round that a policy takes.

Lockstep decoding decides by what is accepted, never by the clock, so one walk holds under every cost.  What makes a
round (plan, candidates, accept, settle) is not written again here: numba compiles the functions of rules.py and
judge.py themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pearl_sim.drivers.compiled import compiled
from pearl_sim.judge import Censored, Request, accept
from pearl_sim.rules import Frontier, Policy, Round, candidates, plan, settle, widest

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Walk:
    """What one policy does with some requests, whatever it costs.

    kinds:    pending drafts -> the round that `plan` makes of them, for those that took place; columns of `counts`.
    counts:   [request, kind], rounds without prefill.
    kept, corrections: [request], as in Totals.
    depths, unknown_rounds: as in Tally.
    rounds:   verified, pending and accepted of every round, one request after another; no rows if not asked for.
    """

    policy: Policy
    prompt_tokens: Integers
    limits: Integers
    kinds: dict[int, Round]
    counts: Integers
    kept: Integers
    corrections: Integers
    depths: list[tuple[int, int, int]]
    unknown_rounds: float | None
    rounds: NDArray[np.int32]

    @property
    def longest_context(self) -> int:
        """Return a number of tokens that no round reads more than, in Python's integers, which do not wrap around."""
        prompt, output = (int(tokens.max(initial=0)) for tokens in (self.prompt_tokens, self.limits))
        return prompt + output + 2 * self.policy.gamma

    @property
    def work(self) -> Integers:
        """Return [2, kind], what is drafted and scored in each kind of round."""
        return np.array(list(self.kinds.values()), np.int64).reshape(-1, 2).T


def walk(
    policy: Policy, requests: Sequence[Request], censored: Sequence[Censored] | None = None, rounds: bool = True
) -> Walk:
    """Return what `policy` does with the requests; `rounds` are only needed where context or luck matters."""
    limits = np.array([request.limit for request in requests], np.int64)
    first_run = np.cumsum([0, *(len(request.runs) for request in requests)])
    runs = np.concatenate([np.empty(0, np.int64), *(request.runs for request in requests)], dtype=np.int64)
    counts = np.zeros((len(requests), policy.gamma + widest(policy) + 1), np.int64)
    chains = np.zeros((len(requests), 2), np.int64)
    deepest = min(int(runs.max(initial=0)), int(limits.max(initial=0)) + policy.gamma) + 1
    ends = np.zeros((2, deepest + 1), np.int64)
    taken = np.empty((2 * int(limits.sum()) if rounds else 0, 3), np.int32)
    cut = np.concatenate([np.empty(0, np.bool_), *(censored or ())])
    end, deepest, unknown = follow(policy, limits, first_run, runs, cut, counts, chains, ends, taken)
    kinds = {int(pending): plan(policy, Frontier(1, int(pending))) for pending in np.flatnonzero(counts.any(axis=0))}
    # Draft d of a chain was checked in every chain of which d or more were, and accepted likewise.
    checked, accepted = np.cumsum(ends[:, deepest::-1], axis=1)[:, ::-1].tolist()
    depths = [(depth, *both) for depth, both in enumerate(zip(checked, accepted, strict=True)) if depth]
    scored = [pending for pending, round in kinds.items() if round.score]
    # Prefill is a target forward too, one whose outcome is known.
    forwards = len(requests) + int(counts[:, scored].sum())
    return Walk(
        policy,
        np.array([request.prompt_tokens for request in requests], np.int64),
        limits,
        kinds,
        counts[:, list(kinds)],
        chains[:, 0],
        chains[:, 1],
        depths,
        None if censored is None else unknown / forwards,
        taken[:end],
    )


def _follow(
    policy: Policy,
    limits: Integers,
    first_run: Integers,
    all_runs: Integers,
    censored: Censored,
    counts: Integers,
    chains: Integers,
    ends: Integers,
    rounds: NDArray[np.int32],
) -> tuple[int, int, int]:
    """Make the rounds of every request; fill `counts`, `chains`, `ends` (from zeros) and, if it has room, `rounds`.

    censored: as long as `all_runs`, or empty where no run is.
    counts: [request, pending]; chains: [request, kept or corrections]; ends: [checked or accepted, how many drafts].
    Returns how many rounds were filled, the deepest draft checked, and the rounds that a record cannot tell.
    """
    taken = deepest = unknown = 0
    for request in range(len(limits)):
        limit, runs, own = limits[request], all_runs[first_run[request] :], counts[request]
        kept = corrections = 0
        frontier, chain = Frontier(1, 0), 1
        while frontier.verified < limit:
            verified, pending = frontier
            round = plan(policy, frontier)
            if pending == 0:
                chain = verified
            checked, accepted = candidates(frontier, round), 0
            if checked:
                accepted = accept(runs[chain], chain, verified, checked)
            frontier = settle(frontier, round, accepted)
            own[pending] += 1
            if len(rounds):
                rounds[taken, 0], rounds[taken, 1], rounds[taken, 2] = verified, pending, accepted
                taken += 1
            if checked and (frontier.pending == 0 or frontier.verified >= limit):
                # The chain ends: its drafts were right down to this depth, and the next was wrong or not looked at.
                depth = verified - chain + accepted
                kept += min(depth, limit - chain)
                ends[1, depth] += 1
                if accepted < checked:
                    corrections += 1
                    if len(censored) > 0 and censored[first_run[request] + chain]:
                        unknown += 1
                    else:
                        depth += 1
                ends[0, depth] += 1
                deepest = max(deepest, depth)
        chains[request, 0], chains[request, 1] = kept, corrections
    return taken, deepest, unknown


follow = compiled(_follow, plan, candidates, settle, accept)
