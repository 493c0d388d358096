"""Cost models: what a scenario may say about time, compiled for one policy to the integer tables of timing.py.

Every model prices three things: a chain of n one-token draft forwards, one target forward over k positions, and
reading the prompt.  `context` is the number of tokens before them.  To add a model: its settings, `timing`, and
its name in Cost.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pearl_sim.duration import Nanoseconds, Picoseconds, PositiveNanoseconds
from pearl_sim.errors import InputError
from pearl_sim.rules import Policy, widest
from pearl_sim.settings import Settings
from pearl_sim.timing import Latency, Timing
from pearl_sim.trace import load

DRAWS = 256
"""Quantiles kept of each recorded latency distribution."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


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
            sync_ns=self._sync() if self.sync is None else self.sync,
            overlap_ppm=round((self.contention - 1) * 1_000_000),
            prefill_ns=prefill if given is None else lambda prompt_tokens: (0, given),
        )

    def _sync(self) -> int:
        return 0


class ConstantCost(SharedCost):
    """Every draft forward takes `draft` and every target forward `target`, whatever its size; so does prefill."""

    model: Literal["constant"] = "constant"
    draft: PositiveNanoseconds
    target: PositiveNanoseconds

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses."""
        return self._timing(
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
    """Latencies resampled from the steps of a trace, so that their spread is simulated too.

    Every size takes one of 256 equally likely quantiles of what was recorded for it, beside the other model in
    parallel rounds and alone in serial ones; where only one of the two was recorded, it stands for both.  A size
    between two recorded ones is interpolated quantile by quantile; draft chains are extrapolated in proportion to
    their length, since a chain is that many equal forwards; a target forward wider than any recorded is refused.
    """

    model: Literal["empirical"] = "empirical"
    trace: Path

    @model_validator(mode="after")
    def _has_steps(self) -> Self:
        for role in ("draft", "target"):
            self._recorded(role, beside=False)
        return self

    def timing(self, policy: Policy) -> Timing:
        """Return the tables for every size that the policy uses; InputError if one is wider than any recorded."""
        alone, beside = (
            (self._draft_table(policy, overlapped), self._target_table(policy, overlapped))
            for overlapped in (False, True)
        )
        prefill = cache(self._prefill)
        return self._timing(*alone, lambda prompt_tokens: prefill(policy.gamma > 0), beside)

    def _draft_table(self, policy: Policy, beside: bool) -> Latency:
        return self._table({0: np.zeros(DRAWS), **self._recorded("draft", beside)}, policy.gamma + 1)

    def _target_table(self, policy: Policy, beside: bool) -> Latency:
        recorded = self._recorded("target", beside)
        if widest(policy) > max(recorded):
            # A width that was recorded only the other way round is better than none.
            recorded = self._recorded("target", not beside) | recorded
        if widest(policy) > max(recorded):
            raise InputError(
                self.trace / "steps.parquet",
                f"the widest target step recorded has {max(recorded)} positions; gamma {policy.gamma} needs "
                f"{widest(policy)}: use a smaller gamma or record wider steps",
            )
        return self._table(recorded, widest(policy) + 1)

    def _steps(self, role: str, beside: bool, prefill: bool) -> pl.DataFrame:
        """Return the steps of one role, overlapped or not as asked, or all if there are none such."""
        is_prefill = pl.col("context") == 0
        steps = load(self.trace).steps.filter(pl.col("role") == role, is_prefill if prefill else ~is_prefill)
        as_asked = steps.filter(pl.col("overlapped") == beside)
        return (as_asked if len(as_asked) else steps).with_columns(ns=pl.col("stop_ns") - pl.col("start_ns"))

    def _recorded(self, role: str, beside: bool) -> dict[int, NDArray[np.float64]]:
        """Return {size: its quantiles in ns}, prompts left out."""
        file = self.trace / "steps.parquet"
        steps = self._steps(role, beside, prefill=False)
        if steps.is_empty():
            raise InputError(file, f"no {role} steps were recorded; capture or profile some")
        if steps["batch"].n_unique() > 1:
            raise InputError(file, "has steps of several batch sizes, which do not mix; keep one of them")
        if self.contention > 1 and steps["overlapped"].any():
            raise InputError("cost.contention", f"{file} has steps timed while the other model ran; leave it at 1")
        levels = (np.arange(DRAWS) + 0.5) / DRAWS
        return {
            size: np.quantile(of_size["ns"].to_numpy(), levels)
            for (size,), of_size in steps.group_by("tokens")
            if isinstance(size, int)
        }

    def _table(self, recorded: dict[int, NDArray[np.float64]], sizes: int) -> Latency:
        known = sorted(recorded)
        rows = []
        for size in range(sizes):
            above = next((k for k in known if k >= size), known[-1])
            below = max((k for k in known if k <= size), default=above)
            if size > known[-1]:
                row = recorded[known[-1]] * (size / known[-1])
            elif above == below:
                row = recorded[above]
            else:
                share = (size - below) / (above - below)
                row = recorded[below] * (1 - share) + recorded[above] * share
            rows.append(tuple(int(ns) for ns in np.rint(row)))
        return Latency(tuple(rows), (0,) * sizes, (0,) * sizes)

    def _sync(self) -> int:
        """Return the mean hand-over of the recorded rounds: what they lasted beyond their longest step."""
        steps = load(self.trace).steps.filter(pl.col("context") > 0)
        rounds = (
            steps.group_by("source", "request", "round")
            .agg(
                start=pl.col("start_ns").min(),
                longest=(pl.col("stop_ns") - pl.col("start_ns")).max(),
                scored=(pl.col("role") == "target").any(),
            )
            .sort("source", "request", "round")
        )
        rounds = rounds.with_columns(lasted=pl.col("start").shift(-1).over("source", "request") - pl.col("start"))
        speculative = steps.filter(pl.col("role") == "draft")["source"].unique()
        rounds = rounds.filter(pl.col("source").is_in(speculative.implode()), pl.col("lasted").is_not_null())
        checks = int(rounds["scored"].sum())
        return max(0, round((rounds["lasted"] - rounds["longest"]).sum() / checks)) if checks else 0

    def _prefill(self, beside: bool) -> tuple[int, int]:
        # The trace's own prompts are what is replayed, so their median stands for every prompt length.
        medians = [self._steps(role, beside, prefill=True)["ns"].median() for role in ("draft", "target")]
        if not all(isinstance(median, float) for median in medians):
            raise InputError("cost.prefill", f"{self.trace} has no prefill steps of both models; give a duration")
        return round(cast(float, medians[0])), round(cast(float, medians[1]))


Cost: TypeAlias = ConstantCost | AffineCost | RooflineCost | EmpiricalCost
"""Any cost model."""


def fixed(times_ns: list[int]) -> Latency:
    """Return a latency that depends on size alone."""
    return Latency(tuple((ns,) for ns in times_ns), (0,) * len(times_ns), (0,) * len(times_ns))
