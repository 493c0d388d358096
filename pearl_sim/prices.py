"""Many constant costs at once, in arrays: the same law as cost.ConstantCost, for points that differ in price only."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pearl_sim.cost import ConstantCost, overlap_ppm
from pearl_sim.rules import Policy
from pearl_sim.timing import RoundTimes, add_up

Integers: TypeAlias = NDArray[np.int64]

KEYS = tuple(name for name in ConstantCost.model_fields if name != "model")
"""The keys of a constant cost; none of them changes a round, and none depends on another."""


def values_of(key: str, values: Sequence[object]) -> Integers:
    """Return values of one key of a constant cost, as in ConstantCosts; pydantic's ValidationError if one is bad."""
    each: Any = ConstantCost.model_fields[key].rebuild_annotation()
    found = TypeAdapter(list[each], config=ConstantCost.model_config).validate_python(list(values))
    return np.array([overlap_ppm(factor) for factor in found] if key == "contention" else found, np.int64)


class ConstantCosts(NamedTuple):
    """Many constant costs at once, an entry each: whole nanoseconds, and contention in ppm.

    prefill: -1 where it follows from the model.
    """

    draft: Integers
    target: Integers
    sync: Integers
    overlap_ppm: Integers
    prefill: Integers

    @classmethod
    def of(cls, costs: Sequence[ConstantCost]) -> Self:
        """Return the arrays of these settings."""
        given = [
            (c.draft, c.target, c.sync or 0, overlap_ppm(c.contention), -1 if c.prefill is None else c.prefill)
            for c in costs
        ]
        return cls(*np.array(given, np.int64).T)

    def taken(self, which: Integers | slice) -> Self:
        """Return the costs at these places."""
        return type(self)(*(field[which] for field in self))

    def replaced(self, key: str, values: Integers) -> Self:
        """Return these costs with other values of one key of the settings."""
        return self._replace(**{"overlap_ppm" if key == "contention" else key: values})

    def round_times(self, policy: Policy, drafted: Integers, scored: Integers) -> RoundTimes:
        """Return [cost, round], what `ConstantCost.timing` makes such rounds take."""
        draft, target, sync, overlap_ppm, _ = (field[:, None] for field in self)
        checks = (scored > 0) & (policy.gamma > 0)
        return add_up(draft * drafted, target * (scored > 0), sync * checks, overlap_ppm)

    def prefill_times(self, policy: Policy) -> RoundTimes:
        """Return [cost], what reading a prompt takes."""
        given = self.prefill >= 0
        with_draft = ~given & (policy.gamma > 0)
        return add_up(self.draft * with_draft, np.where(given, self.prefill, self.target), 0, self.overlap_ppm)

    def within(self, most_ns: int, policy: Policy, rounds: int, requests: int) -> NDArray[np.bool_]:
        """Return which costs certainly keep so many of the longest rounds, and each product, below `most_ns`."""
        draft, target, sync, overlap_ppm, prefill = (field.astype(float) for field in self)
        longest = np.maximum(np.maximum(draft * max(policy.gamma, 1), target), prefill)
        end = (longest * (1 + overlap_ppm / 1e6) + sync) * (rounds + requests)
        # A float can be short of the truth by some parts in 10^16.
        return np.asarray(np.maximum(longest * overlap_ppm, end) < 0.999 * most_ns)
