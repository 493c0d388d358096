"""What a profile comes to: how long each kind of step took, how well that is known, and whether to trust it."""

import polars as pl

from pearl_sim.latencies import timed

TRUSTED = 0.03
"""A profile is too noisy if the mean of a kind of step is known no better than this (standard error, relative)."""

FEW = 3
"""Kinds of step that are seen less often in a pass are not held to this: little depends on them."""

UNSTEADY = 1.25
"""Or if its slowest pass took this many times as long as its fastest."""


def summary(steps: pl.DataFrame) -> pl.DataFrame:
    """Return a row a kind of step: role, batch, tokens, overlapped, rested; count, median_ns, p5_ns, p95_ns, error.

    error: the relative standard error of the mean, from how the means of passes differ.
    """
    kind = ["role", "batch", "tokens", "overlapped", "rested"]
    of_decode = timed(steps).filter(pl.col("context") > 0)
    by_pass = of_decode.group_by(*kind, "request").agg(pl.col("ns").mean())
    errors = by_pass.group_by(kind).agg(error=pl.col("ns").std() / pl.col("ns").mean() / pl.len().sqrt())
    return (
        of_decode.group_by(kind)
        .agg(
            count=pl.len(),
            median_ns=pl.col("ns").median(),
            p5_ns=pl.col("ns").quantile(0.05),
            p95_ns=pl.col("ns").quantile(0.95),
        )
        .join(errors, on=kind)
        .sort(kind)
    )


def doubts(steps: pl.DataFrame) -> list[str]:
    """Return why the profile is not to be trusted, a sentence each; nothing if it is."""
    passes = steps["request"].n_unique()
    if passes < 3:
        return ["too few passes to tell how noisy the machine was; make 3 at least"]
    found = []
    usual = summary(steps).filter(pl.col("count") >= FEW * passes)
    worst = usual.sort("error", descending=True, nulls_last=True).row(0, named=True)
    if worst["error"] > TRUSTED:
        found.append(
            f"too noisy to trust: the mean of {worst['role']} steps of {worst['tokens']} is known to "
            f"{worst['error']:.1%} only; make more passes, or quieten the machine"
        )
    spans = steps.group_by("source", "request").agg(ns=pl.col("stop_ns").max() - pl.col("start_ns").min())
    took = spans.group_by("request").agg(pl.col("ns").sum())["ns"].to_numpy()
    if took.max() > UNSTEADY * took.min():
        found.append(
            f"too unsteady to trust: the slowest pass took {took.max() / took.min():.2f} times as long as the fastest"
        )
    return found
