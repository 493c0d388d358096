"""The first rounds of each policy, draft and target on a lane each, so that one sees what each policy does."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from pearl_sim.lanes import boxes
from pearl_sim.report.section import Figure, Section, Text, ms
from pearl_sim.report.study import Study

FATES = {
    "accepted": "#56B4E9",
    "rejected": "#D55E00",
    "wasted": "#D9B8A0",
    "pending": "#E8E8E8",
    "verifies": "#8FA3B5",
    "hand-over": "#F0E442",
}
LANE = "datum.label == 'ar · target' ? 'ar' : replace(datum.label, /.* · target/, 'target')"
"""Of a policy's two lanes, only the upper one has its name."""

NARROWEST = 35
FORWARDS = 10
"""The chart spans the time of so many target forwards."""


def shown(study: Study) -> pl.DataFrame:
    """Return policy, lane, start, stop (ms after prefill), round, position, tokens, fate of the first request's boxes.

    Every policy over the same span: FORWARDS forwards of autoregressive decoding, or all of a shorter request.
    """
    baseline = study.played["ar"].timelines[0]
    forward = [step.score_ns for step in baseline[1:]] or [baseline[0].stop]
    span = FORWARDS * sum(forward) / len(forward)
    rows = []
    for name, played in study.played.items():
        timeline = played.timelines[0]
        began = timeline[0].stop
        for box in boxes(timeline):
            start, stop = box.start - began, min(box.stop - began, span)
            if 0 <= start < span and box.fate != "prefill":
                rows.append((name, box.lane, start / 1e6, stop / 1e6, box.round, box.position, box.tokens, box.fate))
    columns = ("policy", "lane", "start", "stop", "round", "position", "tokens", "fate")
    return pl.DataFrame(rows, columns, orient="row")


def section(studies: Sequence[Study]) -> Section:
    """Return a Gantt chart for every place studied."""
    body: list[Figure | Text] = []
    for number, study in enumerate(studies, start=1):
        body += [*study.heading(len(studies)), _figure(study, number)]
    return Section(
        "gantt",
        "The first rounds, token by token",
        "Time runs to the right; the upper lane of a policy is the draft, a box a token, the lower one the target, a "
        "box a forward with the number of tokens it adds to the output. SD's lanes take turns; PEARL's run together: "
        "its target checks the first draft while the rest are written (pre-verify), and its draft writes on while the "
        "target checks what is pending (post-verify).",
        body,
    )


def _figure(study: Study, number: int) -> Figure:
    table = shown(study)
    policies = table["policy"].unique(maintain_order=True).to_list()
    rows = table.with_columns(row=pl.format("{} · {}", "policy", "lane"))
    order = [f"{policy} · {lane}" for policy in policies for lane in ("draft", "target")]
    order = [row for row in order if row in set(rows["row"])]
    fates = [fate for fate in FATES if fate in set(rows["fate"])]
    y = alt.Y("row:N", sort=order, title=None, axis=alt.Axis(grid=False, labelExpr=LANE))
    x = alt.X("start:Q", title="ms after prefill", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False))
    tooltip = ["row", "fate", "round", "position", "tokens", alt.Tooltip("start:Q", format=".4g", title="start, ms")]
    bars = (
        alt.Chart(rows)
        .mark_bar(height=20, stroke="white", strokeWidth=0.8)
        .encode(
            x=x,
            x2="stop:Q",
            y=y,
            color=alt.Color("fate:N", scale=alt.Scale(domain=fates, range=[FATES[fate] for fate in fates]), title=None),
            tooltip=tooltip,
        )
    )
    # A box cut short by the chart's end has no room for its number.
    wide = (pl.col("stop") - pl.col("start")) * NARROWEST > rows.select(pl.col("stop").max()).item()
    committed = rows.filter(pl.col("fate") == "verifies", wide).with_columns(
        middle=(pl.col("start") + pl.col("stop")) / 2
    )
    labels = (
        alt.Chart(committed, name="on_colour")
        .mark_text(fontSize=10, color="black")
        .encode(x=alt.X("middle:Q"), y=y, text=alt.Text("tokens:Q", format="+d"))
    )
    chart = alt.layer(bars, labels).properties(width=860, height=26 * len(order), title="The first rounds")
    gammas = ", ".join(f"{name} {study.played[name].policy.gamma}" for name in study.drafting)
    span = ms(1e6 * float(table.select(pl.col("stop").max()).item()))
    return Figure(
        f"gantt_{number}",
        chart,
        f"The first request, its first {span} of decoding, each policy at its best gamma ({gammas}). Rejected: "
        "checked by the target and refused. Wasted: dropped behind a rejected one, unseen."
        + (" Pending: not yet checked when the request ended." if "pending" in fates else ""),
        [(fate, FATES[fate]) for fate in fates],
        about=study.title,
        least_width=760,
    )
