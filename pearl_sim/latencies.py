"""What recorded steps say about time, read off a trace or a profile.

How long a step of each size takes, alone and beside the other model, with its spread and its growth with context;
what a round takes beyond its slower step; how long a prompt takes to read.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pearl_sim.errors import InputError
from pearl_sim.timing import HandOver, Latency
from pearl_sim.trace import load_steps

DRAWS = 256
"""Quantiles kept of each recorded distribution."""

Floats = NDArray[np.float64]


class Measured(NamedTuple):
    """The steps of one role and kind: size -> DRAWS equally likely ns at context 0, and ns a token of context."""

    base: dict[int, Floats]
    slope: dict[int, float]


@dataclass(frozen=True, eq=False)
class Recorded:
    """What the steps of one trace and batch size say, worked out once.

    draft, target: beside the other model? -> its steps.
    """

    steps: pl.DataFrame
    draft: dict[bool, Measured]
    target: dict[bool, Measured]
    hand_over: HandOver


def recorded(trace: Path, batch: int | None) -> Recorded:
    """Return what the steps in `trace` say, worked out anew if its file has changed; InputError as `steps_of`."""
    load_steps(trace)
    file = trace / "steps.parquet"
    return _recorded(trace, batch, file.stat().st_mtime_ns if file.exists() else 0)


@lru_cache(maxsize=4096)
def prefill_of(recorded: Recorded, prompt_tokens: int, with_draft: bool) -> tuple[int, int]:
    """Return `prefill` of the recorded steps."""
    return prefill(recorded.steps, prompt_tokens, with_draft)


@lru_cache(maxsize=8)
def _recorded(trace: Path, batch: int | None, _changed: int) -> Recorded:
    steps = steps_of(trace, batch)
    draft, target = (
        {beside: measured(steps, role, beside) for beside in (False, True)} for role in ("draft", "target")
    )
    return Recorded(steps, draft, target, hand_over(steps))


def steps_of(trace: Path, batch: int | None) -> pl.DataFrame:
    """Return the recorded steps with their length `ns`, those of one batch size; InputError if that is not one."""
    file = trace / "steps.parquet"
    steps = load_steps(trace)
    sizes = sorted(steps["batch"].unique())
    if batch is None and len(sizes) > 1:
        raise InputError(file, f"has steps of the batch sizes {', '.join(map(str, sizes))}; choose one with cost.batch")
    if batch is not None and batch not in sizes:
        known = ", ".join(map(str, sizes)) or "none"
        raise InputError("cost.batch", f"{batch} was not recorded in {file}; recorded: {known}")
    own = steps if batch is None else steps.filter(pl.col("batch") == batch)
    for role in ("draft", "target"):
        if own.filter(pl.col("role") == role, pl.col("context") > 0).is_empty():
            raise InputError(file, f"no {role} steps were recorded; capture or profile some")
    return own.with_columns(ns=pl.col("stop_ns") - pl.col("start_ns"))


def growth(steps: pl.DataFrame, role: str) -> float:
    """Return by how much a step of this role grows with each token of context, relative to its mean over all contexts.

    One figure for all sizes, by least squares within each size and kind: every size reads the same keys and values.
    Never negative; 0 where contexts do not differ.
    """
    of_size = ["tokens", "overlapped"]
    own = steps.filter(pl.col("role") == role, pl.col("context") > 0)
    own = own.with_columns(
        relative=pl.col("ns") / pl.col("ns").mean().over(of_size) - 1,
        context=pl.col("context") - pl.col("context").mean().over(of_size),
    )
    relative, context = own["relative"].to_numpy(), own["context"].to_numpy()
    spread = float(context @ context)
    return max(0.0, float(relative @ context) / spread) if spread else 0.0


def measured(steps: pl.DataFrame, role: str, beside: bool) -> Measured:
    """Return the steps of one role that ran beside the other model, or alone; all of them, if only one was recorded."""
    own = steps.filter(pl.col("role") == role, pl.col("context") > 0)
    as_asked = own.filter(pl.col("overlapped") == beside)
    rate = growth(steps, role)
    levels = (np.arange(DRAWS) + 0.5) / DRAWS
    base, slope = {}, {}
    for (size,), rows in (as_asked if len(as_asked) else own).group_by("tokens"):
        assert isinstance(size, int)
        ns, context = rows["ns"].to_numpy(), rows["context"].to_numpy()
        slope[size] = rate * float(ns.mean())
        base[size] = np.quantile(ns - slope[size] * context, levels)
    return Measured(base, slope)


def draft_table(found: Measured, sizes: int) -> Latency:
    """Return chains of 0 to `sizes` - 1 forwards; lengths between and beyond recorded ones lie on a line with them.

    Where only one length was recorded, a chain takes time in proportion.
    """
    nothing: Measured = Measured({0: np.zeros(DRAWS)}, {0: 0.0})
    known = found if len(found.base) > 1 else Measured(nothing.base | found.base, nothing.slope | found.slope)
    return _table(known, sizes, beyond=True)


def target_table(found: Measured, sizes: int) -> Latency:
    """Return forwards over 0 to `sizes` - 1 positions, interpolated; narrower than any recorded takes its time."""
    return _table(found, sizes, beyond=False)


def hand_over(steps: pl.DataFrame) -> HandOver:
    """Return the mean of what recorded rounds lasted beyond their longest step, by who worked in them.

    A kind that was not recorded takes the mean over all rounds.
    """
    rounds = rounds_of(steps).filter(pl.col("over_ns").is_not_null())
    means = [
        rounds.filter(pl.col("drafted") == drafted, pl.col("scored") == scored)["over_ns"].mean()
        for drafted, scored in ((True, False), (False, True), (True, True))
    ]
    everything = rounds["over_ns"].mean()
    return HandOver(*(max(0, round(_number(_number(mean, everything), 0.0))) for mean in means))


def rounds_of(steps: pl.DataFrame) -> pl.DataFrame:
    """Return a row a decoding round, in order: what was drafted and scored, and its times.

    source, request, round, drafted, scored; draft, score (sizes), draft_ns, score_ns; over_ns, what it lasted
    beyond its longer step (until the next round started; null for the last).
    """
    role = pl.col("role")
    decoding = steps.filter(pl.col("context") > 0).with_columns(ns=pl.col("stop_ns") - pl.col("start_ns"))

    def of(model: str, column: str) -> pl.Expr:
        return pl.col(column).filter(role == model).sum()

    rounds = (
        decoding.group_by("source", "request", "round")
        .agg(
            start_ns=pl.col("start_ns").min(),
            longest_ns=pl.col("ns").max(),
            drafted=(role == "draft").any(),
            scored=(role == "target").any(),
            draft=of("draft", "tokens"),
            score=of("target", "tokens"),
            draft_ns=of("draft", "ns"),
            score_ns=of("target", "ns"),
        )
        .sort("source", "request", "round")
    )
    lasted = pl.col("start_ns").shift(-1).over("source", "request") - pl.col("start_ns")
    return rounds.with_columns(over_ns=lasted - pl.col("longest_ns")).drop("longest_ns")


def prefill(steps: pl.DataFrame, prompt_tokens: int, with_draft: bool) -> tuple[int, int]:
    """Return how long draft and target take to read a prompt: a line through what was recorded, or the median.

    `with_draft`: prefills beside the other model count where they were recorded, else those alone.
    """
    times = []
    for role in ("draft", "target"):
        own = steps.filter(pl.col("role") == role, pl.col("context") == 0)
        as_asked = own.filter(pl.col("overlapped") == with_draft)
        own = as_asked if len(as_asked) else own
        if own.is_empty():
            raise InputError("cost.prefill", "the steps have no prefill of both models; give a duration")
        by_length = own.group_by("tokens").agg(pl.col("ns").median(), pl.len()).sort("tokens")
        lengths, medians, counts = (by_length[column].to_numpy() for column in by_length.columns)
        times.append(_on_line(lengths, medians, counts, prompt_tokens))
    return times[0], times[1]


def _on_line(lengths: NDArray[Any], medians: NDArray[Any], counts: NDArray[Any], at: int) -> int:
    """Return the weighted least-squares line through (lengths, medians) at `at`, never falling, at least 1."""
    length, level = np.average(lengths, weights=counts), np.average(medians, weights=counts)
    spread = np.average((lengths - length) ** 2, weights=counts)
    rise = np.average((lengths - length) * (medians - level), weights=counts) / spread if spread else 0.0
    return max(1, round(float(level + max(0.0, rise) * (at - length))))


def _table(found: Measured, sizes: int, beyond: bool) -> Latency:
    known = np.array(sorted(found.base))
    times = np.array([found.base[size] for size in known])
    slopes = np.array([found.slope[size] for size in known])
    base, slope = [], []
    for size in range(sizes):
        if size == 0:
            base.append((0,) * DRAWS)
            slope.append(0)
            continue
        above = int(np.clip(np.searchsorted(known, size), 1, len(known) - 1)) if len(known) > 1 else 0
        below = max(0, above - 1)
        share = (size - known[below]) / (known[above] - known[below]) if above > below else 0.0
        if not beyond:
            share = min(max(share, 0.0), 1.0)
        row = times[below] * (1 - share) + times[above] * share
        base.append(tuple(max(1, int(ns)) for ns in np.rint(row)))
        slope.append(max(0, round(1000 * (slopes[below] * (1 - share) + slopes[above] * share))))
    return Latency(tuple(base), tuple(slope), (0,) * sizes)


def _number(value: object, otherwise: object) -> float:
    found = value if isinstance(value, int | float) else otherwise
    return float(found) if isinstance(found, int | float) else 0.0
