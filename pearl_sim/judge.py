"""Who says how many draft tokens are accepted: the run lengths of a request, recorded or drawn from a law.

`runs[i]` is the number of consecutive draft tokens that the target accepts when drafting starts after i
verified tokens.  For an ordinary draft model runs[i] = 0 or 1 + runs[i + 1]; for a drafter whose quality
depends on depth it is free.  Because it is known at every position, one record answers for every policy and
every gamma.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Runs: TypeAlias = NDArray[np.int64]

Censored: TypeAlias = NDArray[np.bool_]
"""Where a run is known only to be at least so long: the recorder looked no further."""


class Request(NamedTuple):
    """One request to decode: its prompt length, how many tokens to write, and its run lengths.

    `runs` has an entry for every position below `limit`; a run may reach past the limit.
    """

    prompt_tokens: int
    limit: int
    runs: Runs


def accept(run: int, chain: int, verified: int, candidates: int) -> int:
    """Return how many of `candidates` are accepted in a chain of drafts that started after `chain` tokens.

    `run` is runs[chain]; what the chain has already had verified is used up.  A chain starts wherever nothing
    is pending, and goes on across rounds until then.
    """
    return min(run - (verified - chain), candidates)
