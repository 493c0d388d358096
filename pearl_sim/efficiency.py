"""What rounds take beyond their models: wall time over the critical path, and where the rest goes.

The critical path of a run is the longer of the two models in every round.  A round lasts beyond that because the draft
starts late (the order has to reach it first) and because what was written has to come back and be judged.
"""

import polars as pl

from pearl_sim.latencies import rounds_of

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
    longest = pl.max_horizontal("draft_ns", "score_ns")
    lasted = pl.col("start_ns").shift(-1).over("source", "request") - pl.col("start_ns")
    late = pl.col("stop_ns") - pl.col("start_ns") - longest
    rounds = rounds_of(steps).with_columns(longest=longest, lasted=lasted, late=late).drop_nulls("lasted")
    rounds = rounds.with_columns(after=pl.col("lasted") - pl.col("longest") - pl.col("late"))
    found = rounds.group_by("source").agg(
        rounds=pl.len().cast(pl.Int64),
        wall_over_critical=pl.col("lasted").sum() / pl.col("longest").sum(),
        hand_over_us=(pl.col("late") + pl.col("after")).mean() / 1000,
        late_us=pl.col("late").mean() / 1000,
        after_us=pl.col("after").mean() / 1000,
    )
    in_order = steps.select(pl.col("source").unique(maintain_order=True))
    return in_order.join(found, on="source", maintain_order="left").select(list(COLUMNS))
