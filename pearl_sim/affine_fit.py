"""An affine cost model fitted to recorded steps: a machine's times in a dozen numbers that mean something.

A forward is taken to cost a fixed time, one for each sequence, for each token, for each token of context, and for each
product of the last two; a chain of draft forwards also something to start.  All are found by least squares, none below
zero.  A fit is for reading and for extrapolating; within what was recorded, the empirical
cost is closer.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pearl_sim import latencies
from pearl_sim.affine import Forward
from pearl_sim.cost import AffineCost

Floats = NDArray[np.float64]

SPREAD = 16
"""Quantiles of the deviations that a fitted forward keeps."""


class Misfit(NamedTuple):
    """How far steps lie from the fit, as shares of it: median and 95th percentile of the size; mean by kind."""

    role: str
    steps: int
    median: float
    p95: float
    alone: float | None
    beside: float | None


class FittedCost(NamedTuple):
    """The fitted cost, and its misfit for draft and target."""

    cost: AffineCost
    misfits: tuple[Misfit, ...]


def fit_cost(steps: pl.DataFrame) -> FittedCost:
    """Return the affine cost that lies closest to these steps, of whatever batch sizes and contexts.

    Its `batch` is 1 and its prefill is the recorded one of the median prompt.
    """
    steps = latencies.timed(steps)
    forwards, misfits, start = {}, [], 0.0
    for role in ("draft", "target"):
        own = steps.filter(pl.col("role") == role, pl.col("context") > 0)
        took = own["ns"].to_numpy().astype(float)
        terms = _chain_terms(own) if role == "draft" else _forward_terms(own)
        # Scaled by what is usual for a step of its kind, not by its own time: a slow step must not count for less.
        usual = own.select(pl.col("ns").median().over("tokens", "batch", "overlapped", "rested"))["ns"].to_numpy()
        found = non_negative(terms / usual[:, None], took / usual)
        fitted = terms @ found
        deviations = took / fitted - 1
        if role == "draft":
            start, found = found[-1], found[:-1]
        forwards[role] = _forward(found, deviations)
        misfits.append(_misfit(role, deviations, own["overlapped"].to_numpy()))
    hand_over = latencies.hand_over(steps)
    prompts = steps.filter(pl.col("role") == "target", pl.col("context") == 0)["tokens"]
    middle = int(np.median(prompts.to_numpy()))
    cost = AffineCost.read(
        "fit",
        {
            "draft": forwards["draft"],
            "target": forwards["target"],
            "draft_start": f"{round(start)} ns",
            "sync": f"{hand_over.both_ns} ns",
            "prefill": f"{max(latencies.prefill(steps, middle, True))} ns",
        },
    )
    return FittedCost(cost, tuple(misfits))


def non_negative(terms: Floats, values: Floats) -> Floats:
    """Return the x >= 0 that makes |terms x - values| least.

    With so few terms every set of them that may be above zero is tried: of those whose ordinary least squares has no
    negative part, the best is the answer.
    """
    _, width = terms.shape
    normal, right = terms.T @ terms, terms.T @ values
    best, least = np.zeros(width), 0.0
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            kept = list(chosen)
            x = np.linalg.lstsq(normal[np.ix_(kept, kept)], right[kept], rcond=None)[0]
            # |terms x - values|^2, less what does not depend on x.
            loss = float(x @ normal[np.ix_(kept, kept)] @ x - 2 * x @ right[kept])
            if (x >= 0).all() and loss < least:
                best, least = np.zeros(width), loss
                best[kept] = x
    return best


def as_toml(found: FittedCost, name: str) -> str:
    """Return the fit as a [cost] table for a scenario file, with what it leaves unexplained."""
    lines = [f"# An affine cost fitted to the steps of {name}; paste it into a scenario file."]
    for one in found.misfits:
        means = (("alone", one.alone), ("beside the other", one.beside))
        told = ", ".join(f"{kind} {mean:+.1%}" for kind, mean in means if mean is not None)
        lines.append(
            f"# {one.role}: half of {one.steps} steps lie within {one.median:.1%} of it, 95 % within {one.p95:.1%}; "
            f"their means {told}"
        )
    cost = found.cost
    lines += [
        "[cost]",
        'model = "affine"',
        f'sync = "{cost.sync} ns"',
        f'prefill = "{cost.prefill} ns"  # of the median prompt',
        f'draft_start = "{cost.draft_start} ns"',
    ]
    for role, forward in (("draft", cost.draft), ("target", cost.target)):
        lines += [f"[cost.{role}]", f'base = "{forward.base} ns"']
        lines += [f'{term} = "{getattr(forward, term)} ps"' for term in Forward._fields[1:] if getattr(forward, term)]
        lines.append(f"spread = {list(forward.spread)}")
    return "\n".join(lines) + "\n"


def _forward_terms(steps: pl.DataFrame) -> Floats:
    batch, tokens, context = (steps[column].to_numpy().astype(float) for column in ("batch", "tokens", "context"))
    ones = np.ones(len(steps))
    return np.stack([ones, batch, batch * tokens, batch * context, batch * tokens * context], axis=1)


def _chain_terms(steps: pl.DataFrame) -> Floats:
    """Return the terms of so many one-token forwards, and of one start.

    Of one token, what it and its sequence take cannot be told apart, so it all goes to the sequence.
    """
    batch, chain, context = (steps[column].to_numpy().astype(float) for column in ("batch", "tokens", "context"))
    ones, nothing = np.ones(len(steps)), np.zeros(len(steps))
    reads = chain * context + chain * (chain - 1) / 2
    return np.stack([chain, batch * chain, nothing, batch * reads, nothing, ones], axis=1)


def _forward(found: Floats, deviations: Floats) -> dict[str, object]:
    levels = (np.arange(SPREAD) + 0.5) / SPREAD
    spread = [round(float(deviation), 4) for deviation in np.quantile(deviations, levels)]
    return {
        "base": f"{max(1, round(found[0]))} ns",
        **{term: f"{round(1000 * value)} ps" for term, value in zip(Forward._fields[1:], found[1:], strict=True)},
        "spread": spread,
    }


def _misfit(role: str, deviations: Floats, overlapped: NDArray[np.bool_]) -> Misfit:
    size = np.abs(deviations)
    alone, beside = (
        float(deviations[overlapped == kind].mean()) if (overlapped == kind).any() else None for kind in (False, True)
    )
    return Misfit(role, len(deviations), float(np.median(size)), float(np.quantile(size, 0.95)), alone, beside)
