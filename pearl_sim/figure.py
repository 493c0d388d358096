"""One figure a scenario: what each policy gains along the longest swept axis, theory as lines, simulation as points.

Every policy has one colour wherever it is drawn (Okabe & Ito 2008, safe for colour-blind readers).
"""

from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import altair as alt
import polars as pl

from pearl_sim.sweep import Results

COLOURS = {
    "ar": "#808080",
    "sd": "#E69F00",
    "pearl": "#0072B2",
    "pearl-no-pre": "#CC79A7",
    "pearl-no-post": "#009E73",
}
SHAPES = {"ar": "cross", "sd": "square", "pearl": "circle", "pearl-no-pre": "triangle-up", "pearl-no-post": "diamond"}
MOST_PANELS = 9
MOST_ALONG = 50
"""Values shown along an axis; of more, so many spread evenly."""

Chart: TypeAlias = alt.LayerChart | alt.FacetChart

TITLES = {
    "speedup": "speed-up over AR",
    "tokens_per_t_draft": "tokens per t_draft",
    "acceptance.alpha": "acceptance alpha",
    "acceptance.rate": "acceptance kept per depth",
    "policy.gamma": "gamma, tokens drafted a round",
    "cost.target_ms": "t_target, ms",
    "cost.draft_ms": "t_draft, ms",
}


def draw(rows: pl.DataFrame, heading: str) -> Chart:
    """Return the figure of a scenario's rows: one panel for each value of the shorter axes, nine at most.

    Of a very long axis, some two hundred values are shown, each policy's best among them; the subtitle says so.
    """
    note = "note_tokens_per_t_draft" if rows["note_tokens_per_t_draft"].count() else None
    measure = "tokens_per_t_draft" if note else "speedup"
    in_unit = pl.col(measure) / pl.col("tokens_per_s")
    table = rows.with_columns(
        simulated=pl.col(measure),
        low=pl.col("speedup_low") if measure == "speedup" else pl.col("tokens_per_s_low") * in_unit,
        high=pl.col("speedup_high") if measure == "speedup" else pl.col("tokens_per_s_high") * in_unit,
        theory=pl.col("theory_tokens_per_s") * in_unit,
        estimate=pl.col(note) if note else pl.lit(None, pl.Float64),
    )
    keys = [name for name in rows.columns[2:] if "." in name]
    keys.sort(key=lambda key: table[key].n_unique(), reverse=True)
    shown = table.select(
        "policy", "gamma", *keys, "simulated", "low", "high", "theory", "estimate", "tokens_per_target_forward"
    )
    exact = shown["theory"].count() > 0
    legend = [
        "points: simulated, with 95 % interval",
        "lines join exact theory at the same places" if exact else "lines join the points",
    ]
    # The first of equals.
    best = pl.int_range(pl.len()) == pl.col("simulated").arg_max()
    shown = shown.with_columns(best=best.over("policy", *keys[1:]) & (pl.col("gamma") > 0))
    for what, most, names in (("panels", MOST_PANELS, keys[1:]), ("values", MOST_ALONG, keys[:1])):
        kinds = shown.select(names).unique(maintain_order=True) if names else shown.clear()
        if len(kinds) > most:
            shown = _thinned(shown, kinds, most, pl.lit(False) if what == "panels" else pl.col("best"))
            legend.append(f"{shown.select(names).unique().height} of {len(kinds)} {what} shown")
    if note:
        legend.append("dashed: the reading note's estimate")
    elif keys and keys[0] == "policy.gamma":
        legend.append("ring: each policy's best gamma")
    title = alt.TitleParams(heading, subtitle="; ".join(legend), anchor="start", offset=12)
    chart = _bars(shown, measure) if not keys else _panels(shown, keys, measure, exact)
    styled: Chart = chart.properties(title=title).configure_view(stroke=None).configure_axis(gridColor="#e6e6e6")
    return styled


def _thinned(shown: pl.DataFrame, kinds: pl.DataFrame, most: int, besides: pl.Expr) -> pl.DataFrame:
    """Return the rows of `most` kinds, spread evenly over all, and those `besides`."""
    spread = kinds[[round(place * (len(kinds) - 1) / (most - 1)) for place in range(most)]]
    marked = shown.join(spread.with_columns(kept=True), on=kinds.columns, how="left", maintain_order="left")
    return marked.filter(pl.col("kept").is_not_null() | besides).drop("kept")


def save(results: Results, directory: Path) -> None:
    """Write figure.png and figure.html (which opens offline) into `directory`."""
    chart = draw(results.rows, results.scenario.title)
    chart.save(str(directory / "figure.png"), ppi=144)
    chart.save(str(directory / "figure.html"), inline=True)


def colour(policies: list[str]) -> alt.Color:
    """Return the encoding that gives each policy its colour."""
    scale = alt.Scale(domain=policies, range=[COLOURS[name] for name in policies])
    return alt.Color("policy:N", scale=scale, title="policy")


def shape(policies: list[str]) -> alt.Shape:
    """Return the encoding that gives each policy its shape of point, for eyes and printers without colour."""
    scale = alt.Scale(domain=policies, range=[SHAPES[name] for name in policies])
    return alt.Shape("policy:N", scale=scale, title="policy")


def _panels(shown: pl.DataFrame, keys: list[str], measure: str, exact: bool) -> Chart:
    axis, *rest = keys
    order: list[str] = []
    if rest:
        labels = [
            pl.concat_str(pl.lit(f"{_title(key)} = "), pl.col(key).round_sig_figs(4).cast(pl.String)) for key in rest
        ]
        shown = shown.with_columns(panel=pl.concat_str(labels, separator=", "))
        order = shown.sort(rest)["panel"].unique(maintain_order=True).to_list()
    values = shown[axis].unique().sort().to_list()
    policies = shown["policy"].unique(maintain_order=True).to_list()
    whole = all(isinstance(value, int) for value in values)
    x = alt.X(
        _field(axis),
        title=_title(axis),
        axis=alt.Axis(tickMinStep=1 if whole else alt.Undefined, labelOverlap="greedy", labelSeparation=6),
        scale=alt.Scale(type="log" if _geometric(values) else "linear", nice=False, padding=8),
    )
    y = alt.Y("simulated:Q", title=_title(measure), scale=alt.Scale(zero=False), axis=alt.Axis(grid=True))
    details = [_field(key) for key in keys]
    tooltip = [
        "policy",
        "gamma",
        *details,
        *(f"{name}:Q" for name in ("simulated", "low", "high", "theory", "estimate")),
    ]
    base = alt.Chart(shown).encode(x=x, color=colour(policies))
    layers = [
        base.mark_line(strokeWidth=1.8).encode(y=alt.Y("theory:Q" if exact else "simulated:Q")),
        base.mark_rule(strokeWidth=1.2).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=30, opacity=1).encode(y=y, shape=shape(policies), tooltip=tooltip),
    ]
    if axis == "policy.gamma" and measure == "speedup":
        best = base.transform_filter("datum.best").mark_point(filled=False, size=160, strokeWidth=1.6, opacity=1)
        layers.append(best.encode(y=y))
    if shown["estimate"].count():
        layers.insert(0, base.mark_line(strokeDash=[5, 4], strokeWidth=1.8).encode(y=alt.Y("estimate:Q")))
    if measure == "speedup":
        parity = alt.Chart(shown).mark_rule(color="#888888", strokeDash=[2, 2]).encode(y=alt.datum(1))
        layers.insert(0, parity)
    if not rest:
        return alt.layer(*layers).properties(width=560, height=340)
    panel = alt.layer(*layers).properties(width=260, height=220)
    return panel.facet(facet=alt.Facet("panel:N", title=None, sort=order), columns=min(3, len(order)))


def _bars(shown: pl.DataFrame, measure: str) -> Chart:
    policies = shown["policy"].to_list()
    base = alt.Chart(shown).encode(y=alt.Y("policy:N", sort=policies, title=None), color=colour(policies))
    bars = base.mark_bar(height=18).encode(
        x=alt.X("simulated:Q", title=_title(measure)), tooltip=["policy", "simulated:Q"]
    )
    spread = base.mark_rule().encode(x="low:Q", x2="high:Q", color=alt.value("black")).properties(name="ink_spread")
    label = base.mark_text(align="left", dx=12).encode(
        x="simulated:Q", text=alt.Text("simulated:Q", format=".2f"), color=alt.value("black")
    )
    return alt.layer(bars, spread, label).properties(width=520, height=alt.Step(30))


def _title(key: str) -> str:
    return TITLES.get(key, key.replace("_ms", ", ms"))


def _field(key: str) -> str:
    """Return `key` as Vega-Lite wants it: a dot would mean a nested object."""
    return key.replace(".", "\\.") + ":Q"


def _geometric(values: list[float]) -> bool:
    """Return whether the values grow by equal factors, over at least two octaves."""
    if len(values) < 3 or values[0] <= 0 or values[-1] < 4 * values[0]:
        return False
    factors = [right / left for left, right in pairwise(values)]
    return max(factors) < 1.01 * min(factors)
