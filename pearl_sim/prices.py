"""Many constant or affine costs at once, in arrays: the law of affine.py, for points that differ in price only."""

from collections.abc import Mapping, Sequence
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

LARGEST = 2**63 - 1


def together(cost: Cost) -> TypeGuard[ConstantCost | AffineCost]:
    """Return whether points that differ in this cost's KEYS only can be priced together: luck plays no part in it."""
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


@dataclass(frozen=True)
class Costs:
    """Many costs, all affine, constant ones being a kind of them.

    numbers: [cost], by the keys of an affine cost: whole ns and ps; `contention` in ppm, `prefill` -1 where it follows
             from the model.
    """

    numbers: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, cost: ConstantCost | AffineCost, swept: Mapping[str, Integers], count: int) -> Self:
        """Return `count` times this cost, but for the `swept` keys, as `values_of` gives them."""
        law = cost.law
        terms = (*law.draft, *law.target, law.draft_start, law.batch, *(getattr(cost, key) for key in SHARED))
        said = dict(zip(KEYS[AffineCost], terms, strict=True))
        numbers = {key: np.full(count, _number(key, value)) for key, value in said.items()}
        constant = isinstance(cost, ConstantCost)
        named = {f"{key}.base" if constant and key in ("draft", "target") else key: at for key, at in swept.items()}
        return cls(numbers | named)

    def __len__(self) -> int:
        """Return how many costs there are."""
        return len(self.numbers["batch"])

    def taken(self, which: Integers) -> Self:
        """Return the costs at these places."""
        return type(self)({key: values[which] for key, values in self.numbers.items()})

    @property
    def law(self) -> Affine:
        """Return the law whose terms are these arrays."""
        terms = [self.numbers[term] for term in TERMS]
        half = len(Forward._fields)
        return Affine(
            Forward(*terms[:half]), Forward(*terms[half:]), self.numbers["draft_start"], self.numbers["batch"]
        )

    @property
    def grow(self) -> bool:
        """Return whether context changes any time."""
        return any(values.any() for key, values in self.numbers.items() if key.endswith("context_token"))

    def parts(self, round: Round) -> tuple[NDArray[Any], NDArray[Any], tuple[NDArray[Any], NDArray[Any]]]:
        """Return [cost], the draft's and the target's time in a round before context counts, and their slopes in ps."""
        none = np.zeros_like(self.numbers["batch"])
        draft_ns, draft_ps = self.law.chain(round.draft) if round.draft else (none, none)
        score_ns, score_ps = self.law.verify(round.score) if round.score else (none, none)
        return draft_ns, score_ns, (draft_ps, score_ps)

    def hand_over(self, policy: Policy, round: Round) -> NDArray[Any]:
        """Return [cost], what such a round takes beyond its slower part: sync, if it can check a draft token."""
        return self.numbers["sync"] * (round.score > 0 and policy.gamma > 0)

    def slopes(self, round: Round) -> Slopes:
        """Return the slopes of such a round, of costs that are all alike in them."""
        draft_ps, score_ps = self.parts(round)[2]
        return Slopes(int(draft_ps[0]), int(score_ps[0]))

    def alike(self) -> list[Integers]:
        """Return groups of the costs, those that share every slope."""
        # Slopes are multiples of a chain's, and lines in what the target scores: three numbers say all.
        three = np.stack([self.law.chain(1)[1], self.law.verify(0)[1], self.law.verify(1)[1]])
        _, group = np.unique(three, axis=1, return_inverse=True)
        order = np.argsort(group, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)

    def prefill_times(self, policy: Policy, prompt_tokens: Integers) -> RoundTimes:
        """Return [cost, prompt], what reading each of these prompts takes."""
        each = {key: values[:, None] for key, values in self.numbers.items()}
        draft_ns, target_ns = Costs(each).law.prefill(prompt_tokens)
        given = each["prefill"] >= 0
        with_draft = ~given & (policy.gamma > 0)
        return add_up(draft_ns * with_draft, np.where(given, each["prefill"], target_ns), 0, each["contention"])

    def within(self, most_ns: int, policy: Policy, rounds: int, prompt_tokens: Integers, context: int) -> NDArray[Any]:
        """Return which costs certainly keep so many of the longest rounds, and all products, below `most_ns`.

        `context` is the most that any round reads; `rounds` counts no prefill.
        """
        floats = Costs({key: values.astype(float) for key, values in self.numbers.items()})
        draft_ns, score_ns, slopes = floats.parts(Round(max(policy.gamma, 1), widest(policy)))
        parts = [ns + slope_ps * context / 1000 for ns, slope_ps in zip((draft_ns, score_ns), slopes, strict=True)]
        prompt = float(prompt_tokens.max(initial=0))
        longest = np.maximum.reduce([*parts, *floats.law.prefill(prompt), floats.numbers["prefill"]])
        ppm = floats.numbers["contention"]
        end = (longest * (1 + ppm / 1e6) + floats.numbers["sync"]) * (rounds + len(prompt_tokens))
        # A float can be short of the truth by some parts in 10^16.
        return np.asarray(np.maximum(longest * ppm, end) < 0.999 * most_ns)


def _number(key: str, value: Any) -> int:
    """Return what Costs hold for a setting's value; one past 64 bits becomes the largest, which no clock can hold."""
    if key == "contention":
        return overlap_ppm(value)
    if value is None:
        return -1 if key == "prefill" else 0
    return min(int(value), LARGEST)
