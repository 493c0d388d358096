"""The interactive explorer: sliders, and curves from the exact formulas that explorer.js computes in the page."""

import math
from html import escape

import altair as alt
import numpy as np
import polars as pl

from pearl_sim.figure import COLOURS, colour
from pearl_sim.report import exact
from pearl_sim.report.section import Figure, Markup, Section, ms
from pearl_sim.report.study import ClosedForm

MOST = 32
"""The largest gamma of the slider and the curves."""

EXAMPLE = ClosedForm(alpha=0.8, t_draft=1e6, t_target=8e6, sync=0.0, exact=True)


def curves(form: ClosedForm) -> pl.DataFrame:
    """Return policy, gamma, speedup as explorer.js computes them, for the sliders' first position."""
    times = [np.array([time]) for time in (form.t_draft, form.t_target, form.sync)]
    gammas = range(1, MOST + 1)
    return pl.concat(
        pl.DataFrame(
            {
                "policy": name,
                "gamma": gammas,
                "speedup": exact.speeds(form.alpha, name, gammas, *times)[:, 0] * form.t_target,
            }
        )
        for name in exact.NAMES
    )


def section(form: ClosedForm | None) -> Section:
    """Return the explorer, its sliders at `form` to begin with."""
    at = form or EXAMPLE
    names = list(exact.NAMES)
    lines = (
        alt.Chart(alt.NamedData("explored"))
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=18))
        .encode(
            x=alt.X("gamma:Q", title="gamma, tokens drafted a round", scale=alt.Scale(domain=[1, MOST], nice=False)),
            y=alt.Y("speedup:Q", title="speed-up over AR", scale=alt.Scale(zero=True)),
            color=colour(names),
            tooltip=["policy:N", "gamma:Q", alt.Tooltip("speedup:Q", format=".3f")],
        )
    )
    chosen = alt.Chart(alt.NamedData("chosen")).mark_rule(color="#888888", strokeDash=[4, 3]).encode(x="gamma:Q")
    chart = alt.layer(chosen, lines).properties(
        width=560,
        height=300,
        title="Exact speed-up at the sliders' settings",
        datasets={"explored": curves(at).to_dicts(), "chosen": [{"gamma": 4}]},
    )
    fitted = form is not None and not form.exact
    caption = (
        "Speed-up over autoregressive decoding against gamma. To begin with: "
        f"alpha {at.alpha:.3g}, t_draft {ms(at.t_draft)}, t_target {ms(at.t_target)}, sync {ms(at.sync)}"
        + (
            ", the means of the place above; its replay, with every time as it was, may say otherwise."
            if fitted
            else "."
        )
    )
    return Section(
        "explorer",
        "Explore: what if?",
        "Move a slider and see what every policy would do; the formulas are exact for i.i.d. acceptance, constant "
        "times and a device for each model.",
        [Markup(_form(at)), Figure("explorer", chart, caption, [(n, COLOURS[n]) for n in names]), Markup(TABLE)],
    )


TABLE = (
    '<div class="scroll"><table aria-live="polite"><thead><tr><th>policy</th><th>speed-up</th><th>tokens/s</th>'
    '<th>best gamma</th><th>speed-up there</th></tr></thead><tbody id="explorer-table"></tbody></table></div>'
)


def _form(at: ClosedForm) -> str:
    sliders = [
        _slider("alpha", "alpha: a draft token is accepted with", at.alpha, 0, 0.99, 0.001),
        _slider("gamma", "gamma: tokens drafted a round", 4, 1, MOST, 1),
        _slider("tDraft", "t_draft: a draft forward", at.t_draft / 1e6, 0.1, 10, 0.01, log=True, unit="ms"),
        _slider("tTarget", "t_target: a target forward", at.t_target / 1e6, 0.1, 10, 0.01, log=True, unit="ms"),
        _slider(
            "sync", "sync: hand-over of a round", at.sync / 1e6, 0, at.t_target / 1e6, at.t_target / 1e9, unit="ms"
        ),
    ]
    return f'<form id="explorer-form" data-most="{MOST}" autocomplete="off">{"".join(sliders)}</form>'


def _slider(
    name: str, label: str, value: float, low: float, high: float, step: float, log: bool = False, unit: str = ""
) -> str:
    """Return a labelled slider; a logarithmic one reaches from `low` to `high` times its value."""
    if log:
        middle = math.log10(value)
        value, low, high = middle, middle + math.log10(low), middle + math.log10(high)
    value = min(max(value, low), high)
    return (
        f'<p><label for="x-{name}">{escape(label)}</label>'
        f'<input type="range" id="x-{name}" name="{name}" min="{low:.6g}" max="{high:.6g}" step="{step:.6g}" '
        f'value="{value:.6g}" data-scale="{"log" if log else "linear"}" data-unit="{unit}">'
        f'<output for="x-{name}"></output></p>'
    )
