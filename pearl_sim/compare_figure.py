"""The picture of a comparison: by how much simulated speed is off, for each policy and gamma, with its interval."""

from pathlib import Path

import altair as alt
import polars as pl

from pearl_sim.figure import COLOURS


def draw(found: pl.DataFrame, title: str) -> alt.FacetChart:
    """Return a panel a policy; where there are several costs, the first is drawn filled and the others hollow."""
    costs = found["cost"].unique(maintain_order=True).to_list()
    shown = found.with_columns(pl.col("error", "error_low", "error_high") * 100)
    policies = [name for name in COLOURS if name in set(found["policy"])]
    colours = alt.Scale(domain=policies, range=[COLOURS[name] for name in policies])
    base = alt.Chart(shown).encode(
        x=alt.X("gamma:O", title="gamma", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("cost:N", sort=costs) if len(costs) > 1 else alt.Undefined,
        color=alt.Color("policy:N", scale=colours, legend=None),
    )
    y = alt.Y("error:Q", title="simulated speed off by, %")
    shape = alt.Shape(
        "cost:N",
        sort=costs,
        title="cost",
        scale=alt.Scale(domain=costs, range=["circle", "diamond", "square", "triangle"][: len(costs)]),
        legend=alt.Legend(orient="bottom", direction="horizontal", labelLimit=0) if len(costs) > 1 else None,
    )
    layers = [
        alt.Chart(shown).mark_rule(color="#888888").encode(y=alt.datum(0)),
        base.mark_rule(strokeWidth=1.2).encode(y=alt.Y("error_low:Q"), y2="error_high:Q"),
        base.mark_point(size=55, filled=True, opacity=1).encode(
            y=y, shape=shape, tooltip=["policy", "gamma", "cost", "error:Q", "error_low:Q", "error_high:Q"]
        ),
    ]
    panels = alt.layer(*layers).properties(width=alt.Step(34 if len(costs) == 1 else 15), height=220)
    chart: alt.FacetChart = (
        panels.facet(facet=alt.Facet("policy:N", title=None, sort=policies), columns=len(policies))
        .resolve_scale(x="independent")
        .properties(title=alt.TitleParams(title, subtitle="bars: 95 % interval over requests", anchor="start"))
        .configure_view(stroke=None)
        .configure_axis(gridColor="#e6e6e6")
    )
    return chart


def save(found: pl.DataFrame, title: str, file: Path) -> None:
    """Write the picture as PNG."""
    draw(found, title).save(str(file), ppi=144)
