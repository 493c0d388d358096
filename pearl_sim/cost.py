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
from pearl_sim.duration import Nanoseconds, Picoseconds, PositiveNanoseconds
from pearl_sim.errors import InputError
from pearl_sim.rules import Policy, widest
from pearl_sim.settings import Settings
from pearl_sim.timing import HandOver, Latency, Timing

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


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
        draft: Latency,
        target: Latency,
        prefill: Callable[[int], tuple[int, int]],
        beside: tuple[Latency, Latency] | None = None,
    ) -> Timing:
        given = self.prefill
        draft_beside, target_beside = beside or (draft, target)
        return Timing(
            draft=draft,
            target=target,
            draft_beside=draft_beside,
            target_beside=target_beside,
            hand_over=self._hand_over(policy),
            overlap_ppm=overlap_ppm(self.contention),
            prefill_ns=prefill if given is None else lambda prompt_tokens: (0, given),
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

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses."""
        return self._timing(
            policy,
            fixed([self.draft * n for n in range(policy.gamma + 1)]),
            fixed([self.target] * (widest(policy) + 1)),
            lambda prompt_tokens: (self.draft, self.target),
        )


class AffineForward(Settings):
    """One forward takes base + per_token * its tokens + per_context_token * the tokens before them."""

    base: PositiveNanoseconds
    per_token: Picoseconds = 0
    per_context_token: Picoseconds = 0

    def ns(self, tokens: int) -> int:
        """Return the time of a forward over that many tokens, before context counts."""
        return self.base + self.per_token * tokens // 1000


class AffineCost(SharedCost):
    """Forward times affine in tokens and context; a batch multiplies both, and all of it advances together."""

    model: Literal["affine"] = "affine"
    draft: AffineForward
    target: AffineForward
    batch: Count = 1

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses."""
        chain, positions = range(policy.gamma + 1), range(widest(policy) + 1)
        step_ns, context_ps = self.draft.ns(self.batch), self.draft.per_context_token * self.batch
        return self._timing(
            policy,
            Latency(
                # The i-th forward of a chain also reads the i tokens written before it.
                base_ns=tuple((n * step_ns + context_ps * (n * (n - 1) // 2) // 1000,) for n in chain),
                slope_ps=tuple(n * context_ps for n in chain),
                floor_ns=(0,) * len(chain),
            ),
            Latency(
                base_ns=tuple((self.target.ns(k * self.batch),) for k in positions),
                slope_ps=(self.target.per_context_token * self.batch,) * len(positions),
                floor_ns=(0,) * len(positions),
            ),
            lambda prompt: (self.draft.ns(prompt * self.batch), self.target.ns(prompt * self.batch)),
        )


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

    Every size takes one of 256 equally likely quantiles of what was recorded for it, beside the other model in
    parallel rounds and alone in serial ones; where only one of the two was recorded, it stands for both.  Times grow
    with context as they were seen to.  Draft chains of other lengths lie on a line with those recorded; a target
    forward between two recorded widths is interpolated, and one wider than any is refused.
    """

    model: Literal["empirical"] = "empirical"
    trace: Path
    batch: Count | None = None
    """Which of the recorded batch sizes to take, where there are several."""

    @model_validator(mode="after")
    def _has_steps(self) -> Self:
        steps = self._recorded().steps
        if self.contention > 1 and steps["overlapped"].any():
            file = self.trace / "steps.parquet"
            raise InputError("cost.contention", f"{file} has steps timed while the other model ran; leave it at 1")
        return self

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses; InputError if one is wider than any recorded."""
        recorded = self._recorded()
        alone, beside = (
            (
                latencies.draft_table(recorded.draft[overlapped], policy.gamma + 1),
                self._target_table(recorded, policy, overlapped),
            )
            for overlapped in (False, True)
        )
        return self._timing(
            policy, *alone, lambda prompt: latencies.prefill_of(recorded, prompt, policy.gamma > 0), beside
        )

    def _target_table(self, recorded: latencies.Recorded, policy: Policy, beside: bool) -> Latency:
        measured = recorded.target[beside]
        if widest(policy) > max(measured.base):
            # A width that was recorded only the other way round is better than none.
            other = recorded.target[not beside]
            measured = latencies.Measured(other.base | measured.base, other.slope | measured.slope)
        if widest(policy) > max(measured.base):
            raise InputError(
                self.trace / "steps.parquet",
                f"the widest target step recorded has {max(measured.base)} positions; gamma {policy.gamma} needs "
                f"{widest(policy)}: use a smaller gamma or record wider steps",
            )
        return latencies.target_table(measured, widest(policy) + 1)

    def _recorded(self) -> latencies.Recorded:
        return latencies.recorded(self.trace, self.batch)

    def _hand_over(self, policy: Policy) -> HandOver:
        return self._recorded().hand_over if self.sync is None else super()._hand_over(policy)


Cost: TypeAlias = ConstantCost | AffineCost | RooflineCost | EmpiricalCost
"""Any cost model."""


def fixed(times_ns: list[int]) -> Latency:
    """Return a latency that depends on size alone."""
    return Latency(tuple((ns,) for ns in times_ns), (0,) * len(times_ns), (0,) * len(times_ns))
