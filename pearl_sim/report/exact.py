"""Exact speeds over many settings at once, for i.i.d. acceptance and constant times.

What a policy does in a cycle depends on acceptance and gamma alone, so it is computed once and priced for every
setting of the times together.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl_sim import theory
from pearl_sim.acceptance import Floats, Survival
from pearl_sim.policies import POLICIES
from pearl_sim.theory import Work

NAMES = tuple(POLICIES)


class Best(NamedTuple):
    """[policy in the order of NAMES, setting]: the highest speed over the gammas, and the smallest gamma there."""

    speed: Floats
    gamma: NDArray[np.int64]


def speeds(alpha: float, name: str, gammas: Sequence[int], t_draft: Floats, t_target: Floats, sync: Floats) -> Floats:
    """Return [gamma, setting]: tokens per unit of time of a policy over a long text, for arrays of times."""
    found = []
    for gamma in gammas:
        tokens, kinds = _cycle(alpha, name, gamma)
        time = sum(
            rounds
            * (np.maximum(work.draft * t_draft, t_target if work.score else 0.0) + (sync if work.checks else 0.0))
            for work, rounds in kinds
        )
        found.append(tokens / time)
    return np.asarray(found)


def best(alpha: float, gammas: Sequence[int], t_draft: Floats, t_target: Floats, sync: Floats) -> Best:
    """Return every policy's best speed and gamma at each setting of the times."""
    tables = [speeds(alpha, name, gammas, t_draft, t_target, sync) for name in NAMES]
    # A gamma that gains less than rounding could is no better.
    at = [np.argmax(table >= table.max(axis=0) * (1 - 1e-12), axis=0) for table in tables]
    return Best(
        np.stack([table.max(axis=0) for table in tables]), np.stack([np.asarray(gammas)[index] for index in at])
    )


@lru_cache(maxsize=65536)
def _cycle(alpha: float, name: str, gamma: int) -> tuple[float, list[tuple[Work, float]]]:
    policy, survival = POLICIES[name](gamma), _survival(alpha)
    return theory.tokens_per_cycle(policy, survival), theory.work_per_cycle(policy, survival)


@lru_cache(maxsize=256)
def _survival(alpha: float) -> Survival:
    # One function object an alpha, so that theory finds the depth of its chains once.
    return theory.iid(alpha)
