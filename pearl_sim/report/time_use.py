"""Where the time goes: wall time a token, cut by what the devices were doing, and drafts that came to nothing."""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import polars as pl

from pearl_sim.figure import COLOURS, colour
from pearl_sim.judge import Request
from pearl_sim.report.section import Figure, Section, Text
from pearl_sim.report.study import Study
from pearl_sim.timeline import Timeline

PARTS = {
    "prefill": "#B8B8B8",
    "draft exposed": "#56B4E9",
    "draft hidden": "#5E3C99",
    "score exposed": "#D55E00",
    "sync": "#F0E442",
}
"""In the order that they are stacked: the prompt; only the draft runs; both run, so drafting costs no time; only the
target runs; hand-over."""


class TimeUse(NamedTuple):
    """Nanoseconds of wall time by what ran; they add up to the time of the rounds."""

    prefill: int
    draft_exposed: int
    draft_hidden: int
    score_exposed: int
    sync: int


def time_use(timelines: Sequence[Timeline]) -> TimeUse:
    """Return where the wall time of these requests went."""
    prefill = exposed = hidden = score = sync = 0
    for reading, *rounds in timelines:
        prefill += reading.stop - reading.start
        for step in rounds:
            both = min(step.draft_ns, step.score_ns)
            hidden += both
            exposed += step.draft_ns - both
            score += step.score_ns - both
            sync += step.stop - step.start - max(step.draft_ns, step.score_ns)
    return TimeUse(prefill, exposed, hidden, score, sync)


def drafts(timelines: Sequence[Timeline], requests: Sequence[Request]) -> tuple[int, int]:
    """Return how many drafted tokens became output, and how many were drafted in vain."""
    drafted = kept = 0
    for timeline, request in zip(timelines, requests, strict=False):
        for step in timeline:
            drafted += step.round.draft
            kept += min(step.accepted, request.limit - step.frontier.verified)
    return kept, drafted - kept


def section(studies: Sequence[Study]) -> Section:
    """Return two figures for every place studied."""
    body: list[Figure | Text] = []
    for number, study in enumerate(studies, start=1):
        body += [*study.heading(len(studies)), *_figures(study, number)]
    return Section(
        "time",
        "Where the time goes",
        "Bars are wall time for each output token, shorter is faster; purple is drafting that costs nothing because "
        "the target runs meanwhile, and PEARL is the attempt to turn blue and orange into purple.",
        body,
    )


def _figures(study: Study, number: int) -> list[Figure]:
    labels = {
        name: f"{name}, gamma {played.policy.gamma}" if played.policy.gamma else name
        for name, played in study.played.items()
    }
    cut = f" First {len(study.few)} of {len(study.requests)} requests." if len(study.few) < len(study.requests) else ""
    figures = [
        Figure(
            f"time_{number}",
            _stacked(study, labels),
            "Draft exposed: only the draft runs. Draft hidden: both run. Score exposed: only the target runs. Sync: "
            f"hand-over.{cut}",
            list(PARTS.items()),
            study.title,
        )
    ]
    if study.drafting:
        figures.append(
            Figure(
                f"wasted_{number}",
                _wasted(study, labels),
                "Full colour: drafts that became output; pale: drafted in vain, rejected or behind a rejected "
                f"one.{cut}",
                [(name, COLOURS[name]) for name in study.drafting],
                study.title,
            )
        )
    return figures


def _stacked(study: Study, labels: dict[str, str]) -> alt.Chart:
    written = sum(request.limit for request in study.few)
    rows = [
        {"policy": labels[name], "part": part, "rank": rank, "ms": ns / written / 1e6}
        for name, played in study.played.items()
        for rank, (part, ns) in enumerate(zip(PARTS, time_use(played.timelines), strict=True))
    ]
    scale = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar(height=22)
        .encode(
            x=alt.X("ms:Q", title="ms for each output token"),
            y=alt.Y("policy:N", sort=list(labels.values()), title=None),
            color=alt.Color("part:N", scale=scale, sort=list(PARTS), title=None),
            order="rank:Q",
            tooltip=["policy", "part", alt.Tooltip("ms:Q", format=".4g")],
        )
        .properties(width=420, height=34 * len(labels), title="Wall time for each output token")
    )
    return chart


def _wasted(study: Study, labels: dict[str, str]) -> alt.Chart:
    written = sum(request.limit for request in study.few)
    rows = [
        {"label": labels[name], "policy": name, "drafts": kind, "rank": rank, "count": count / written}
        for name in study.drafting
        for rank, (kind, count) in enumerate(
            zip(("kept", "wasted"), drafts(study.played[name].timelines, study.few), strict=True)
        )
    ]
    pale = alt.Scale(domain=["kept", "wasted"], range=[1, 0.35])
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar(height=22)
        .encode(
            x=alt.X("count:Q", title="drafts for each output token"),
            y=alt.Y("label:N", sort=list(labels.values()), title=None),
            color=colour(study.drafting),
            opacity=alt.Opacity("drafts:O", scale=pale, title="drafts"),
            order="rank:Q",
            tooltip=["label", "drafts", alt.Tooltip("count:Q", format=".3g")],
        )
        .properties(width=420, height=34 * len(study.drafting), title="Drafts kept and wasted")
    )
    return chart
