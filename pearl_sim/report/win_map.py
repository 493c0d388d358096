"""Who wins where: acceptance against how much slower the target is than the draft, from exact theory alone.

Times are constant, hand-over is free, acceptance is i.i.d., and every policy takes its own best gamma.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import altair as alt
import numpy as np
import polars as pl

from pearl_sim.figure import COLOURS, Chart, colour
from pearl_sim.report import exact
from pearl_sim.report.section import Figure, Section
from pearl_sim.report.study import ClosedForm

ALPHAS = np.round(np.linspace(0.02, 0.98, 49), 2)
RATIOS = np.geomspace(0.5, 64, 57)
GAMMAS = range(1, 65)
ALWAYS = ("pearl", "sd")
EQUAL = 1e-9
LOSSES = (0.1, 5, 10, 20, 40)
LOSS_COLOURS = ("#00224E", "#35456C", "#666970", "#948E77", "#C8B866", "#FEE838")
"""Cividis (Nunez, Anderton & Renslow 2018): the brighter, the more is lost."""


class Mark(NamedTuple):
    """A place to mark on the map."""

    label: str
    at: ClosedForm


def cells() -> pl.DataFrame:
    """Return a row a cell of the map.

    alpha, ratio: its middle; alpha_to, alpha_from, ratio_from, ratio_to: its edges.
    policy, gamma, speedup: the best one there, over autoregressive decoding.
    regret_pearl, regret_sd: how much of that speed, in percent, is lost by always choosing PEARL, or SD, at its own
    best gamma.
    """
    half, factor = (ALPHAS[1] - ALPHAS[0]) / 2, np.sqrt(RATIOS[1] / RATIOS[0])
    tables = []
    for alpha, (speed, gamma) in _best().items():
        # The plainest of equals wins: policies are in order of what they ask for.
        winner = np.argmax(speed >= speed.max(axis=0) * (1 - 1e-9), axis=0)
        top, at = speed.max(axis=0), np.arange(len(RATIOS))
        tables.append(
            pl.DataFrame(
                {
                    "alpha": alpha,
                    "ratio": RATIOS,
                    "alpha_from": alpha - half,
                    # A cell reaches a little under the next, so that no seam shines through.
                    "alpha_to": alpha + 1.3 * half,
                    "ratio_from": np.maximum(RATIOS / factor, RATIOS[0]),
                    "ratio_to": np.minimum(RATIOS * factor**1.3, RATIOS[-1]),
                    "policy": np.asarray(exact.NAMES)[winner],
                    "gamma": np.where(winner == 0, 0, gamma[winner, at]),
                    "speedup": top * RATIOS,
                    **{f"regret_{name}": 100 * (1 - speed[exact.NAMES.index(name)] / top) for name in ALWAYS},
                }
            )
        )
    return pl.concat(tables)


def break_even(one: str, other: str) -> pl.DataFrame:
    """Return where `one` begins to be faster than `other`, each at its best gamma, unless AR is faster than both.

    Segments from (alpha, ratio) to (alpha_to, ratio_to), by marching squares over the middles of the map's cells.
    """
    first, second = exact.NAMES.index(one), exact.NAMES.index(other)
    leads = [np.log(speed[first] / speed[second]) - EQUAL for speed, _ in _best().values()]
    idle = np.stack(
        [np.maximum(speed[first], speed[second]) <= speed[0] * (1 + EQUAL) for speed, _ in _best().values()]
    )
    lead, ratios = np.stack(leads), np.log(RATIOS)
    rows = []
    for i in range(len(ALPHAS) - 1):
        for j in range(len(RATIOS) - 1):
            corners = [(i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)]
            ends = []
            for here, there in zip(corners, corners[1:] + corners[:1], strict=True):
                low, high = lead[here], lead[there]
                if (low < 0) != (high < 0):
                    share = low / (low - high)
                    alpha = ALPHAS[here[0]] + share * (ALPHAS[there[0]] - ALPHAS[here[0]])
                    ends.append((alpha, float(np.exp(ratios[here[1]] + share * (ratios[there[1]] - ratios[here[1]])))))
            if other != "ar" and all(idle[corner] for corner in corners):
                continue
            rows += [(*ends[k], *ends[k + 1]) for k in range(0, len(ends), 2)]
    return pl.DataFrame(rows, dict.fromkeys(("alpha", "ratio", "alpha_to", "ratio_to"), pl.Float64), orient="row")


@cache
def _best() -> dict[float, exact.Best]:
    """Return alpha -> every policy's best speed and gamma at each ratio, in units of a draft forward."""
    ones = np.ones_like(RATIOS)
    return {alpha: exact.best(alpha, GAMMAS, ones, RATIOS, 0 * ones) for alpha in ALPHAS.tolist()}


def section(marks: Sequence[Mark]) -> Section:
    """Return the map, the two maps of regret, and where each mark lies."""
    table = cells()
    policies = [name for name in exact.NAMES if name in set(table["policy"])]
    small = table.with_columns(pl.col("alpha", "speedup", "^.*_(from|to)$", "^regret_.*$", "ratio").round_sig_figs(4))
    winners = _map(small, colour(policies), [("pearl", "sd")], marks)
    figures = [
        Figure(
            "win_map",
            winners.properties(title="Fastest policy, each at its best gamma", width=760, height=380),
            "Exact theory, i.i.d. acceptance, constant times. White line: PEARL and SD are equally fast."
            + (" Dot: where the pair studied here lies." if marks else ""),
            [(name, COLOURS[name]) for name in policies],
        )
    ]
    edges = [f"under {LOSSES[0]} %", *(f"to {loss} %" for loss in LOSSES[1:]), "more"]
    for name in ALWAYS:
        loss = alt.Color(
            f"regret_{name}:Q",
            scale=alt.Scale(type="threshold", domain=list(LOSSES), range=list(LOSS_COLOURS)),
            title="speed lost, %",
        )
        chart = _map(small, loss, [("pearl", "sd"), (name, "ar")], marks).properties(
            title=f"Speed lost by always choosing {name}"
        )
        figures.append(
            Figure(
                f"regret_{name}",
                chart,
                f"Share of the best policy's speed that is lost by always choosing {name}, at its own best gamma. "
                f"Solid line: PEARL and SD are equally fast; dashed: {name} and AR are.",
                list(zip(edges, LOSS_COLOURS, strict=True)),
            )
        )
    return Section(
        "win-map",
        "Who wins where",
        "Each cell is a model pair: how often a draft token is accepted (across), and how many draft forwards a target "
        "forward lasts (up); find your pair, read the colour. Exact theory: i.i.d. acceptance, constant times, a "
        f"device for each model, free hand-over, gamma up to {GAMMAS[-1]}.",
        figures,
    )


def _map(table: pl.DataFrame, fill: alt.Color, contours: Sequence[tuple[str, str]], marks: Sequence[Mark]) -> Chart:
    x = alt.X("alpha_from:Q", title="acceptance alpha", scale=alt.Scale(domain=[0.01, 0.99], nice=False))
    y = alt.Y(
        "ratio_from:Q",
        title="t_target / t_draft",
        scale=alt.Scale(type="log", domain=[RATIOS[0], RATIOS[-1]], nice=False, clamp=True),
        axis=alt.Axis(values=[0.5, 1, 2, 4, 8, 16, 32, 64], grid=False),
    )
    tooltip = [
        alt.Tooltip("alpha:Q"),
        alt.Tooltip("ratio:Q", title="t_target / t_draft"),
        alt.Tooltip("policy:N", title="fastest"),
        alt.Tooltip("gamma:Q"),
        alt.Tooltip("speedup:Q", format=".3g", title="speed-up over AR"),
        *(alt.Tooltip(f"regret_{name}:Q", format=".1f", title=f"lost by {name}, %") for name in ALWAYS),
    ]
    layers: list[alt.Chart] = [
        alt.Chart(table)
        .mark_rect(strokeWidth=0)
        .encode(x=x, x2="alpha_to:Q", y=y, y2="ratio_to:Q", color=fill, tooltip=tooltip)
    ]
    for one, other in contours:
        line = alt.Chart(break_even(one, other).with_columns(pl.all().round_sig_figs(4)))
        dash = [4, 3] if other == "ar" else [1, 0]
        ends = {"x": "alpha:Q", "y": "ratio:Q", "x2": "alpha_to:Q", "y2": "ratio_to:Q"}
        layers.append(line.mark_rule(color="white", strokeWidth=2, strokeDash=dash, strokeCap="round").encode(**ends))
    if marks:
        places = pl.DataFrame(
            [
                {
                    "label": mark.label,
                    # A pair beyond the map is marked at its edge.
                    "alpha": float(np.clip(mark.at.alpha, ALPHAS[0], ALPHAS[-1])),
                    "ratio": float(np.clip(mark.at.t_target / mark.at.t_draft, RATIOS[0], RATIOS[-1])),
                }
                for mark in marks
            ]
        )
        at = alt.Chart(places).encode(x="alpha:Q", y="ratio:Q", tooltip=["label:N", "alpha:Q", "ratio:Q"])
        layers.append(at.mark_point(size=140, filled=True, fill="black", stroke="white", strokeWidth=2, opacity=1))
        for name, outline in (("on_colour_outline", 3), ("on_colour", 0)):
            text = at.mark_text(
                dx=-10, align="right", fontWeight="bold", fill="white", stroke="black", strokeWidth=outline
            )
            layers.append(text.encode(text="label:N").properties(name=name))
    return alt.layer(*layers).properties(width=420, height=320)
