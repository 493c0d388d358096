"""What rounds take beyond their models: wall time over the critical path, and where the rest goes.

The critical path of a run is the longer of the two models in every round.  A round lasts beyond that because the draft
starts late (the order has to reach it first) and because what was written has to come back and be judged.
"""

import polars as pl

COLUMNS = {
    "source": pl.String,
    "rounds": pl.Int64,
    "wall_over_critical": pl.Float64,
    "hand_over_us": pl.Float64,
    "late_us": pl.Float64,
    "after_us": pl.Float64,
}
"""The columns of `efficiency`, times in microseconds a round.

hand_over_us: all of it, late_us + after_us.
late_us:      by how much the round's last step ends later than if both models had started at once.
after_us:     from the end of that step to the start of the next round: the answer's way back, the verdict, the
              rollback of the text, and the order to the draft.
"""


def efficiency(steps: pl.DataFrame) -> pl.DataFrame:
    """Return COLUMNS for every source in `steps`: of decoding rounds but each request's last, whose end nobody saw."""
    decoding = steps.filter(pl.col("context") > 0).with_columns(ns=pl.col("stop_ns") - pl.col("start_ns"))
    rounds = (
        decoding.group_by("source", "request", "round", maintain_order=True)
        .agg(start=pl.col("start_ns").min(), stop=pl.col("stop_ns").max(), longest=pl.col("ns").max())
        .sort("request", "round", maintain_order=True)
        .with_columns(lasted=pl.col("start").shift(-1).over("source", "request") - pl.col("start"))
        .drop_nulls()
        .with_columns(late=pl.col("stop") - pl.col("start") - pl.col("longest"))
        .with_columns(after=pl.col("lasted") - pl.col("longest") - pl.col("late"))
    )
    return (
        rounds.group_by("source", maintain_order=True)
        .agg(
            rounds=pl.len().cast(pl.Int64),
            wall_over_critical=pl.col("lasted").sum() / pl.col("longest").sum(),
            hand_over_us=(pl.col("late") + pl.col("after")).mean() / 1000,
            late_us=pl.col("late").mean() / 1000,
            after_us=pl.col("after").mean() / 1000,
        )
        .select(list(COLUMNS))
    )
