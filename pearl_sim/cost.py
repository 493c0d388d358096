"""Cost models: what a scenario may say about time, compiled for one policy to the integer tables of timing.py.

Every model prices three things: a chain of n one-token draft forwards, one target forward over k positions, and
reading the prompt.  `context` is the number of tokens before them.  To add a model: its settings, `timing`, and
its name in Cost.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from pearl_sim import latencies
from pearl_sim.affine import Affine, Forward
from pearl_sim.duration import Nanoseconds, Picoseconds, PositiveNanoseconds
from pearl_sim.errors import InputError
from pearl_sim.rules import Policy, widest
from pearl_sim.settings import Count, Settings
from pearl_sim.timing import HandOver, Latencies, Latency, Timing, everywhere

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Spread = Annotated[tuple[Annotated[float, Field(gt=-1, allow_inf_nan=False)], ...], Field(strict=False)]
"""Equally likely relative deviations from the time before context counts; none: always the same."""


def overlap_ppm(contention: float) -> int:
    """Return by how many millionths contention slows a model down."""
    return round((contention - 1) * 1_000_000)


class SharedCost(Settings):
    """What every cost model has beside its two latencies."""

    sync: Nanoseconds | None = None
    """Added to every round in which the target checks draft tokens; left out, none, or what a trace shows."""

    contention: Annotated[float, Field(ge=1, le=100)] = 1.0
    """How many times slower each model runs while the other runs too (1: a device each; 2: time slices of one)."""

    prefill: Nanoseconds | None = None
    """Time to read the prompt; left out, it follows from the model itself."""

    def _timing(
        self,
        policy: Policy,
        draft: Latency | Latencies,
        target: Latency | Latencies,
        prefill: Callable[[int], tuple[int, int]],
    ) -> Timing:
        given = self.prefill
        return Timing(
            draft=draft if isinstance(draft, Latencies) else everywhere(draft),
            target=target if isinstance(target, Latencies) else everywhere(target),
            hand_over=self._hand_over(policy),
            overlap_ppm=overlap_ppm(self.contention),
            prefill_ns=prefill if given is None else lambda prompt_tokens: (0, given),
        )

    def _affine_timing(self, policy: Policy, law: Affine, draft_spread: Spread, target_spread: Spread) -> Timing:
        return self._timing(
            policy,
            affine_table([law.chain(n) for n in range(policy.gamma + 1)], draft_spread),
            affine_table([law.verify(k) for k in range(widest(policy) + 1)], target_spread),
            law.prefill,
        )

    def _hand_over(self, policy: Policy) -> HandOver:
        # The draft alone checks nothing, and autoregressive decoding has nothing to check.
        sync = self.sync or 0
        return HandOver(0, sync if policy.gamma else 0, sync)


class ConstantCost(SharedCost):
    """Every draft forward takes `draft` and every target forward `target`, whatever its size; so does prefill."""

    model: Literal["constant"] = "constant"
    draft: PositiveNanoseconds
    target: PositiveNanoseconds

    @property
    def law(self) -> Affine:
        """Return the same as an affine law, whose bases are all there is."""
        return Affine(Forward(self.draft), Forward(self.target))

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses."""
        return self._affine_timing(policy, self.law, (), ())


class AffineForward(Settings):
    """One forward, affine in its sequences, their tokens, the tokens before them, and the product of the two."""

    base: PositiveNanoseconds
    per_sequence: Picoseconds = 0
    per_token: Picoseconds = 0
    per_context_token: Picoseconds = 0
    per_token_and_context_token: Picoseconds = 0
    spread: Spread = ()

    @property
    def law(self) -> Forward:
        """Return the terms, without the spread."""
        return Forward(*(getattr(self, term) for term in Forward._fields))


class AffineCost(SharedCost):
    """Forward times affine in tokens and context; a batch multiplies both, and all of it advances together."""

    model: Literal["affine"] = "affine"
    draft: AffineForward
    target: AffineForward
    draft_start: Nanoseconds = 0
    """What a chain of draft forwards takes beyond them, once."""
    batch: Count = 1

    @model_validator(mode="after")
    def _spreads_are_drawn_together(self) -> Self:
        if len(self.draft.spread) != len(self.target.spread):
            raise ValueError("draft.spread and target.spread must list equally many deviations")
        return self

    @property
    def law(self) -> Affine:
        """Return the terms, without the spreads."""
        return Affine(self.draft.law, self.target.law, self.draft_start, self.batch)

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses."""
        return self._affine_timing(policy, self.law, self.draft.spread, self.target.spread)


class RooflineModel(Settings):
    """One model on its device: a forward takes the longer of moving its bytes and doing its arithmetic.

    Williams, Waterman & Patterson 2009.  Tensor parallelism is taken as ideal; put what its communication
    costs into `efficiency`.
    """

    parameters: Positive
    bytes_per_parameter: Positive = 2.0
    kv_bytes_per_token: NotNegative = 0.0
    bandwidth_bytes_per_s: Positive
    flop_per_s: Positive
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0
    tensor_parallel: Count = 1

    @property
    def _devices(self) -> float:
        return self.efficiency * self.tensor_parallel / 1e9

    @property
    def weights_ns(self) -> float:
        """Return the time to read all weights once."""
        return self.parameters * self.bytes_per_parameter / (self.bandwidth_bytes_per_s * self._devices)

    @property
    def context_ns(self) -> float:
        """Return the time to read one token's keys and values."""
        return self.kv_bytes_per_token / (self.bandwidth_bytes_per_s * self._devices)

    @property
    def token_ns(self) -> float:
        """Return the time of one token's arithmetic, 2 FLOP a parameter."""
        return 2 * self.parameters / (self.flop_per_s * self._devices)

    def ns(self, tokens: int) -> int:
        """Return the time of a forward over that many tokens with nothing before them."""
        return max(1, round(max(self.weights_ns, self.token_ns * tokens)))


class RooflineCost(SharedCost):
    """Forward times from the models' sizes and the devices' data sheets, for hardware not at hand.

    A chain of draft forwards is bound by memory or by arithmetic as a whole.
    """

    model: Literal["roofline"] = "roofline"
    draft: RooflineModel
    target: RooflineModel
    batch: Count = 1

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses."""
        chain, positions, batch = range(policy.gamma + 1), range(widest(policy) + 1), self.batch
        draft, target = self.draft, self.target
        draft_kv, target_kv = draft.context_ns * batch, target.context_ns * batch
        return self._timing(
            policy,
            Latency(
                base_ns=tuple((round(n * draft.weights_ns + draft_kv * (n * (n - 1) // 2)),) for n in chain),
                slope_ps=tuple(round(n * draft_kv * 1000) for n in chain),
                floor_ns=tuple(round(n * draft.token_ns * batch) for n in chain),
            ),
            Latency(
                base_ns=(((round(target.weights_ns),),) * len(positions)),
                slope_ps=(round(target_kv * 1000),) * len(positions),
                floor_ns=tuple(round(k * target.token_ns * batch) for k in positions),
            ),
            lambda prompt: (draft.ns(prompt * batch), target.ns(prompt * batch)),
        )


class EmpiricalCost(SharedCost):
    """Latencies resampled from the steps of a trace or profile, so that their spread is simulated too.

    Every size takes one of 256 equally likely quantiles of what was recorded for it in the same circumstances: alone
    or beside the other model, after work or after a rest.  Times grow with context as they were seen to.  Draft
    chains of other lengths lie on a line with those recorded; a target forward between two recorded widths is
    interpolated, and one wider than any is refused.
    """

    model: Literal["empirical"] = "empirical"
    trace: Path
    batch: Count | None = None
    """Which of the recorded batch sizes to take, where there are several."""

    @model_validator(mode="after")
    def _has_steps(self) -> Self:
        steps = self._read().steps
        if self.contention > 1 and steps["overlapped"].any():
            file = self.trace / "steps.parquet"
            raise InputError("cost.contention", f"{file} has steps timed while the other model ran; leave it at 1")
        return self

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses; InputError if one is wider than any recorded."""
        read = self._read()
        most = max(max(measured.base) for measured in read.target)
        if widest(policy) > most:
            raise InputError(
                self.trace / "steps.parquet",
                f"the widest target step recorded has {most} positions; gamma {policy.gamma} needs "
                f"{widest(policy)}: use a smaller gamma or record wider steps",
            )
        return self._timing(
            policy,
            Latencies(*(latencies.draft_table(measured, policy.gamma + 1) for measured in read.draft)),
            Latencies(*(latencies.target_table(measured, widest(policy) + 1) for measured in read.target)),
            lambda prompt_tokens: latencies.prefill_of(read, prompt_tokens, policy.gamma > 0),
        )

    def _read(self) -> latencies.StepTimes:
        return latencies.read(self.trace, self.batch)

    def _hand_over(self, policy: Policy) -> HandOver:
        return self._read().hand_over if self.sync is None else super()._hand_over(policy)


Cost: TypeAlias = ConstantCost | AffineCost | RooflineCost | EmpiricalCost
"""Any cost model."""


def affine_table(sizes: list[tuple[int, int]], spread: Spread) -> Latency:
    """Return the times of these sizes, each a time in ns and its slope in ps a token of context."""
    drawn = [tuple(max(min(1, ns), round(ns * (1 + deviation))) for deviation in spread) or (ns,) for ns, _ in sizes]
    return Latency(tuple(drawn), tuple(slope_ps for _, slope_ps in sizes), (0,) * len(sizes))
