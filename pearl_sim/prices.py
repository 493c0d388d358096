"""Many constant or affine costs at once, in arrays: the law of affine.py, for points that differ in price only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter

from pearl_sim.affine import Affine, Forward, Slopes
from pearl_sim.cost import AffineCost, ConstantCost, Cost, SharedCost, overlap_ppm
from pearl_sim.rules import Policy, Round, widest
from pearl_sim.timing import RoundTimes, add_up

Integers: TypeAlias = NDArray[np.int64]

SHARED = tuple(SharedCost.model_fields)
TERMS = tuple(f"{role}.{term}" for role in ("draft", "target") for term in Forward._fields)
KEYS: dict[type[BaseModel], tuple[str, ...]] = {
    ConstantCost: ("draft", "target", *SHARED),
    AffineCost: (*TERMS, "draft_start", "batch", *SHARED),
}
"""The keys of a cost that can be priced with others; none depends on another, and none changes a round."""


def can_share(cost: Cost) -> TypeGuard[ConstantCost | AffineCost]:
    """Return whether points that differ in this cost's KEYS only can share a walk: luck plays no part in it."""
    return isinstance(cost, ConstantCost) or (isinstance(cost, AffineCost) and not cost.draft.spread)


def values_of(cost: ConstantCost | AffineCost, key: str, values: Sequence[object]) -> Integers:
    """Return values of one key of such a cost, as Costs hold them; pydantic's ValidationError if one is bad."""
    table: type[BaseModel] = type(cost)
    *above, last = key.split(".")
    for part in above:
        table = table.model_fields[part].annotation  # type: ignore[assignment]
    each: Any = table.model_fields[last].rebuild_annotation()
    found = TypeAdapter(list[each], config=table.model_config).validate_python(list(values))
    return np.array([_number(key, value) for value in found], np.int64)


def cheap(cost: ConstantCost | AffineCost, swept: Mapping[str, Integers]) -> set[str]:
    """Return those of the swept keys along which pricing a further cost takes next to no time."""
    if not Costs.of(cost, swept, 1).grow:
        return set(swept)
    if cost.contention > 1 or (swept.get("contention", np.zeros(1)) > 0).any():
        return set()
    return {key for key in swept if key != "batch" and not key.endswith("context_token")}


@dataclass(frozen=True)
class Costs:
    """Many costs, all affine, constant ones being a kind of them.

    numbers: by the keys of an affine cost, [cost] where the costs differ, else one for all: whole ns and ps, contention
             in ppm, and for prefill -1 where it follows from the model.
    count:   how many costs there are.
    """

    numbers: Mapping[str, Any]
    count: int

    @classmethod
    def of(cls, cost: ConstantCost | AffineCost, swept: Mapping[str, Integers], count: int) -> Self:
        """Return `count` times this cost, but for the `swept` keys, as `values_of` gives them."""
        law = cost.law
        terms = (*law.draft, *law.target, law.draft_start, law.batch, *(getattr(cost, key) for key in SHARED))
        said = {key: _number(key, term) for key, term in zip(KEYS[AffineCost], terms, strict=True)}
        constant = isinstance(cost, ConstantCost)
        named = {f"{key}.base" if constant and key in ("draft", "target") else key: at for key, at in swept.items()}
        return cls(said | named, count)

    def taken(self, which: Integers) -> Self:
        """Return the costs at these places."""
        return type(self)(self._each(lambda values: values[which]), len(which))

    @property
    def law(self) -> Affine:
        """Return the law, whose terms are these numbers."""
        terms = [self.numbers[term] for term in TERMS]
        half = len(Forward._fields)
        return Affine(
            Forward(*terms[:half]), Forward(*terms[half:]), self.numbers["draft_start"], self.numbers["batch"]
        )

    @property
    def overlap_ppm(self) -> Integers:
        """Return [cost], contention in ppm."""
        return self._whole(self.numbers["contention"])

    @property
    def grow(self) -> bool:
        """Return whether context changes any time."""
        terms = ((forward.per_context_token, forward.per_token_and_context_token) for forward in self.law[:2])
        return any(np.any(term) for pair in terms for term in pair)

    def parts(self, round: Round) -> tuple[Integers, Integers]:
        """Return [cost], the draft's and the target's time in such a round, on its own and before context counts."""
        score_ns = self.law.verify(round.score)[0] if round.score else 0
        return self._whole(self.law.chain(round.draft)[0]), self._whole(score_ns)

    def slopes(self, round: Round) -> Slopes:
        """Return by how much these parts grow with context, under the first cost."""
        first = self._each(lambda values: int(values[0]))
        law = Costs(first, 1).law
        return Slopes(law.chain(round.draft)[1], law.verify(round.score)[1] if round.score else 0)

    def by_slopes(self) -> list[Integers]:
        """Return groups of the costs, those that share every slope."""
        # Slopes are multiples of a chain's, and lines in what the target scores: three numbers say all.
        law = self.law
        three = np.stack([self._whole(slope) for _, slope in (law.chain(1), law.verify(0), law.verify(1))])
        if (three == three[:, :1]).all():
            return [np.arange(self.count)]
        group = np.unique(three, axis=1, return_inverse=True)[1].ravel()  # numpy 2.0.0 has it in two dimensions
        order = np.argsort(group, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)

    def round_times(self, policy: Policy, rounds: Sequence[Round]) -> RoundTimes:
        """Return [cost, round], what such rounds take before context counts."""
        parts = np.array([self.parts(round) for round in rounds], np.int64).reshape(-1, 2, self.count)
        draft_ns, score_ns = parts.transpose(1, 2, 0)
        # Sync is for rounds in which a draft token can be checked.
        checks = [round.score > 0 and policy.gamma > 0 for round in rounds]
        hand_over_ns = self._whole(self.numbers["sync"])[:, None] * checks
        return add_up(draft_ns, score_ns, hand_over_ns, self.overlap_ppm[:, None])

    def prefill_times(self, policy: Policy, prompt_tokens: Integers) -> RoundTimes:
        """Return [cost, prompt], what reading each of these prompts takes."""
        each = Costs(self._each(lambda values: values[:, None]), self.count)
        draft_ns, target_ns = each.law.prefill(prompt_tokens)
        given = self._whole(self.numbers["prefill"])[:, None]
        with_draft = (given < 0) & (policy.gamma > 0)
        target_ns = np.where(given < 0, target_ns, given)
        return add_up(draft_ns * with_draft, target_ns, 0, self.overlap_ppm[:, None])

    def within(self, most_ns: int, policy: Policy, rounds: int, prompt_tokens: Integers, context: int) -> NDArray[Any]:
        """Return which costs certainly keep so many of the longest rounds, and all products, below `most_ns`.

        `context` is the most that any round reads; `rounds` counts no prefill.
        """
        floats = Costs({key: values * 1.0 for key, values in self.numbers.items()}, self.count)
        law, prompt = floats.law, float(prompt_tokens.max(initial=0))
        sizes = law.chain(max(policy.gamma, 1)), law.verify(widest(policy))
        parts = [ns + slope_ps * context / 1000 for ns, slope_ps in sizes]
        ppm, longest = floats.numbers["contention"], floats.numbers["prefill"]
        for part in (*parts, *law.prefill(prompt)):
            longest = np.maximum(longest, part)
        end = (longest * (1 + ppm / 1e6) + floats.numbers["sync"]) * (rounds + len(prompt_tokens))
        # A float can be short of the truth by some parts in 10^16.
        return np.broadcast_to(np.maximum(longest * ppm, end) < 0.999 * most_ns, self.count)

    def _whole(self, value: Any) -> Integers:
        """Return [cost], a value of each or of all."""
        values: Integers = np.zeros(self.count, np.int64) + value
        return values

    def _each(self, change: Callable[[Integers], Any]) -> dict[str, Any]:
        """Return the numbers, those changed in which the costs differ."""
        return {key: change(at) if isinstance(at, np.ndarray) else at for key, at in self.numbers.items()}


def _number(key: str, value: Any) -> int:
    """Return what Costs hold for a setting's value."""
    if key == "contention":
        return overlap_ppm(value)
    if value is None:
        return -1 if key == "prefill" else 0
    return int(value)
