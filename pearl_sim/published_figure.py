"""The picture of `pearl-sim validate published`: how far each predicted throughput lies from the measured one."""

from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

SPLIT = "dataset"
COLOURS = {"AIME": "#E69F00", "CNNDM": "#0072B2", "GSM8K": "#CC79A7", "HumanEval": "#009E73"}
"""Okabe & Ito 2008, safe for colour-blind readers."""


def save(answer: dict[str, Any], file: Path) -> None:
    """Write a PNG: a panel a pair, a point a row, predicted by a fit that left the row's dataset out."""
    rows = pl.DataFrame(answer["predictions"][SPLIT]).with_columns(
        pair=pl.col("draft").str.replace("-Instruct", "")
        + pl.lit(" drafts for ")
        + pl.col("target").str.replace("-Instruct", "").str.replace("Meta-", ""),
        batch=pl.col("batch_size").cast(pl.String),
        percent=100 * pl.col("throughput_error"),
    )
    overall = answer["throughput"][SPLIT]["all"]
    told = f"median {100 * overall['median']:.1f} %, 90th percentile {100 * overall['p90']:.1f} % of 96 rows"
    base = alt.Chart(rows)
    points = base.mark_point(filled=True, size=55, opacity=0.9).encode(
        x=alt.X("batch:N", sort=["1", "8", "16", "32"], title="batch size", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("dataset:N", sort=list(COLOURS)),
        y=alt.Y("percent:Q", title="error of throughput, %", axis=alt.Axis(grid=True)),
        color=alt.Color(
            "dataset:N", scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())), title="left out"
        ),
    )
    panels = alt.layer(base.mark_rule(color="#888888").encode(y=alt.datum(0)), points).properties(width=210, height=170)
    chart = panels.facet(
        facet=alt.Facet("pair:N", title=None, sort=rows["pair"].unique(maintain_order=True).to_list()), columns=3
    )
    title = alt.TitleParams(
        "nano-PEARL on H200, predicted by a fit that has not seen the dataset",
        subtitle=told,
        anchor="start",
        offset=12,
    )
    styled = chart.properties(title=title).configure_view(stroke=None).configure_axis(gridColor="#e6e6e6")
    styled.save(str(file), format="png", ppi=110)
