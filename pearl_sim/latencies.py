"""What recorded steps say about time, read off a trace or a profile.

How long a step of each size takes, with its spread and its growth with context, in four circumstances: alone or beside
the other model; after the model worked in the round before, or after it rested; what a round takes beyond its slower
step; how long a prompt takes to read.
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


class BySize(NamedTuple):
    """The steps of one role and kind: size -> DRAWS equally likely ns at context 0, and ns a token of context."""

    base: dict[int, Floats]
    slope: dict[int, float]


@dataclass(frozen=True, eq=False)
class StepTimes:
    """What the steps of one trace and batch size say, worked out once.

    draft, target: the model's steps by `timing.circumstance`.
    """

    steps: pl.DataFrame
    draft: tuple[BySize, ...]
    target: tuple[BySize, ...]
    hand_over: HandOver


def read(trace: Path, batch: int | None) -> StepTimes:
    """Return what the steps in `trace` say, worked out anew if its file has changed; InputError as steps_of."""
    load_steps(trace)
    file = trace / "steps.parquet"
    return _read(trace, batch, file.stat().st_mtime_ns if file.exists() else 0)


@lru_cache(maxsize=8)
def _read(trace: Path, batch: int | None, _changed: int) -> StepTimes:
    steps = steps_of(trace, batch)
    return StepTimes(steps, by_circumstance(steps, "draft"), by_circumstance(steps, "target"), hand_over(steps))


@lru_cache(maxsize=4096)
def prefill_of(recorded: StepTimes, prompt_tokens: int, with_draft: bool) -> tuple[int, int]:
    """Return `prefill` of the recorded steps."""
    return prefill(recorded.steps, prompt_tokens, with_draft)


def steps_of(trace: Path, batch: int | None) -> pl.DataFrame:
    """Return the recorded steps of one batch size, as `timed` has them; InputError if they are of several, or none."""
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
    return timed(own)


def timed(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with their length `ns`, and `rested`: whether their model waited in the round before.

    After prefill the draft has waited, since the target takes longer to read the prompt.
    """
    run = ["source", "request", "role"]
    round, context = (pl.col(name).shift(1).over(run, order_by="round") for name in ("round", "context"))
    waited = (pl.col("round") - round > 1).fill_null(False)
    after_prefill = (pl.col("role") == "draft") & (context.fill_null(0) == 0)
    return steps.with_columns(ns=pl.col("stop_ns") - pl.col("start_ns"), rested=waited | after_prefill)


def context_growth(steps: pl.DataFrame, role: str) -> float:
    """Return by how much a step of this role grows with each token of context, relative to its mean over all contexts.

    One figure for all sizes, by least squares within each size and circumstance: every size reads the same keys and
    values.  Never negative; 0 where contexts do not differ.
    """
    alike = ["tokens", "overlapped", "rested"]
    own = steps.filter(pl.col("role") == role, pl.col("context") > 0)
    own = own.with_columns(
        relative=pl.col("ns") / pl.col("ns").mean().over(alike) - 1,
        context=pl.col("context") - pl.col("context").mean().over(alike),
    )
    relative, context = own["relative"].to_numpy(), own["context"].to_numpy()
    spread = float(context @ context)
    return max(0.0, float(relative @ context) / spread) if spread else 0.0


def by_circumstance(steps: pl.DataFrame, role: str) -> tuple[BySize, ...]:
    """Return the steps of one role in each circumstance.

    Sizes outside the range that was recorded in it are those of the likest circumstance: first with the same rest, for
    on devices of their own models mind a cold start more than each other.
    """
    own = steps.filter(pl.col("role") == role, pl.col("context") > 0)
    rate = context_growth(steps, role)
    kinds = [(beside, rested) for rested in (False, True) for beside in (False, True)]
    recorded = [_sizes(own.filter(overlapped=beside, rested=rested), rate) for beside, rested in kinds]
    found = []
    for beside, rested in kinds:
        likest = [(beside, rested), (not beside, rested), (beside, not rested), (not beside, not rested)]
        merged = BySize({}, {})
        for kind in likest:
            other = recorded[kinds.index(kind)]
            least, most = (min(merged.base), max(merged.base)) if merged.base else (1, 0)
            outside = [size for size in other.base if not least <= size <= most]
            merged = BySize(
                merged.base | {size: other.base[size] for size in outside},
                merged.slope | {size: other.slope[size] for size in outside},
            )
        found.append(merged)
    return tuple(found)


def _sizes(steps: pl.DataFrame, rate: float) -> BySize:
    levels = (np.arange(DRAWS) + 0.5) / DRAWS
    base, slope = {}, {}
    for (size,), rows in steps.group_by("tokens"):
        assert isinstance(size, int)
        ns, context = rows["ns"].to_numpy(), rows["context"].to_numpy()
        slope[size] = rate * float(ns.mean())
        base[size] = np.quantile(ns - slope[size] * context, levels)
    return BySize(base, slope)


def draft_table(found: BySize, sizes: int) -> Latency:
    """Return chains of 0 to `sizes` - 1 forwards; lengths between and beyond recorded ones lie on a line with them.

    Where only one length was recorded, a chain takes time in proportion.
    """
    nothing: BySize = BySize({0: np.zeros(DRAWS)}, {0: 0.0})
    known = found if len(found.base) > 1 else BySize(nothing.base | found.base, nothing.slope | found.slope)
    return _table(known, sizes, beyond=True)


def target_table(found: BySize, sizes: int) -> Latency:
    """Return forwards over 0 to `sizes` - 1 positions, interpolated; narrower than any recorded takes its time."""
    return _table(found, sizes, beyond=False)


def hand_over(steps: pl.DataFrame) -> HandOver:
    """Return the mean of what rounds last beyond their longer step, by who worked in them.

    What passes until the draft starts a round of its own is that round's: it has to be sent for.  So what follows a
    round's last step is learned where the target starts the next; any more than that, where the draft does, is its.
    """
    kind = pl.col("drafted").cast(pl.Int8) + 2 * pl.col("scored").cast(pl.Int8)
    rounds = rounds_of(steps).with_columns(kind=kind)
    following = [pl.col(name).shift(-1).over("source", "request") for name in ("start_ns", "scored")]
    rounds = rounds.with_columns(
        late=pl.col("stop_ns") - pl.col("start_ns") - pl.max_horizontal("draft_ns", "score_ns"),
        gap=following[0] - pl.col("stop_ns"),
        target_next=following[1],
    )
    seen = rounds.filter("target_next")
    after = {own: _number(seen.filter(pl.col("kind") == own)["gap"].mean()) for own in (1, 2, 3)}
    late = {own: _number(rounds.filter(pl.col("kind") == own)["late"].mean()) for own in (1, 2, 3)}
    sent = rounds.filter(~pl.col("target_next"))
    before = sent["gap"] - sent["kind"].replace_strict(after, default=0.0, return_dtype=pl.Float64)
    means = [late[own] + after[own] + (_number(before.mean()) if own == 1 else 0.0) for own in (1, 2, 3)]
    known = set(rounds.filter(pl.col("gap").is_not_null())["kind"])
    # What was not recorded takes what is usual for the others.
    usual = _number((rounds["late"] + rounds["gap"]).mean())
    return HandOver(*(max(0, round(means[own - 1] if own in known else usual)) for own in (1, 2, 3)))


def rounds_of(steps: pl.DataFrame) -> pl.DataFrame:
    """Return a row a decoding round, in order.

    source, request, round; drafted, scored; draft, score (sizes); draft_ns, score_ns; start_ns, stop_ns: of the first
    step's start and the last one's end.
    """
    role = pl.col("role")
    decoding = steps.filter(pl.col("context") > 0).with_columns(ns=pl.col("stop_ns") - pl.col("start_ns"))

    def of(model: str, column: str) -> pl.Expr:
        return pl.col(column).filter(role == model).sum()

    return (
        decoding.group_by("source", "request", "round")
        .agg(
            start_ns=pl.col("start_ns").min(),
            stop_ns=pl.col("stop_ns").max(),
            drafted=(role == "draft").any(),
            scored=(role == "target").any(),
            draft=of("draft", "tokens"),
            score=of("target", "tokens"),
            draft_ns=of("draft", "ns"),
            score_ns=of("target", "ns"),
        )
        .sort("source", "request", "round")
    )


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


def _table(found: BySize, sizes: int, beyond: bool) -> Latency:
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


def _number(value: object) -> float:
    """Return a mean as a number, 0 where there was nothing to take it of."""
    return float(value) if isinstance(value, int | float) else 0.0
