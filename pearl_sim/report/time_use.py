"""Where the time goes: wall time a token, cut by what the devices were doing, and drafts that came to nothing."""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import polars as pl

from pearl_sim.figure import COLOURS, colour
from pearl_sim.judge import Request
from pearl_sim.report.section import Figure, Section
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
    for first, *rounds in timelines:
        prefill += first.stop - first.start
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
    body: list[Figure] = []
    for number, study in enumerate(studies, start=1):
        body += _figures(study, number)
    return Section(
        "time",
        "Where the time goes",
        "Bars are wall time for each output token, shorter is faster; purple is drafting that costs nothing because "
        "the target runs meanwhile, and PEARL is the attempt to turn blue and orange into purple.",
        body,
    )


def _figures(study: Study, number: int) -> list[Figure]:
    shown = study.requests[: study.shown]
    times, tokens = [], []
    for name, played in study.played.items():
        written = sum(timeline[-1].frontier.verified > 0 for timeline in played.timelines)
        written = sum(request.limit for request in shown) if written else 1
        label = f"{name}, gamma {played.policy.gamma}" if played.policy.gamma else name
        for order, (part, ns) in enumerate(zip(PARTS, time_use(played.timelines), strict=True)):
            times.append({"policy": label, "part": part, "order": order, "ms": ns / written / 1e6})
        kept, wasted = drafts(played.timelines, shown)
        if kept + wasted:
            tokens.append({"label": label, "policy": name, "drafts": "kept", "count": kept / written})
            tokens.append({"label": label, "policy": name, "drafts": "wasted", "count": wasted / written})
    order = list(dict.fromkeys(row["policy"] for row in times))
    cut = f" First {study.shown} of {len(study.requests)} requests." if study.shown < len(study.requests) else ""
    stacked = (
        alt.Chart(pl.DataFrame(times))
        .mark_bar(height=22)
        .encode(
            x=alt.X("ms:Q", title="ms for each output token"),
            y=alt.Y("policy:N", sort=order, title=None),
            color=alt.Color(
                "part:N", scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values())), sort=list(PARTS), title=None
            ),
            order="order:Q",
            tooltip=["policy", "part", alt.Tooltip("ms:Q", format=".4g")],
        )
        .properties(width=420, height=alt.Step(34), title="Wall time for each output token")
    )
    figures = [
        Figure(
            f"time_{number}",
            stacked,
            f"{study.title}. Draft exposed: only the draft runs. Draft hidden: both run. Score exposed: only the "
            f"target runs. Sync: hand-over.{cut}",
            list(PARTS.items()),
        )
    ]
    if tokens:
        drafting = list(dict.fromkeys(row["policy"] for row in tokens))
        bars = (
            alt.Chart(pl.DataFrame(tokens))
            .mark_bar(height=22)
            .encode(
                x=alt.X("count:Q", title="drafted tokens for each output token"),
                y=alt.Y("label:N", sort=order, title=None),
                color=colour(drafting),
                opacity=alt.Opacity(
                    "drafts:N", scale=alt.Scale(domain=["kept", "wasted"], range=[1, 0.35]), title="drafts"
                ),
                order=alt.Order("drafts:N"),
                tooltip=["label", "drafts", alt.Tooltip("count:Q", format=".3g")],
            )
            .properties(width=420, height=alt.Step(34), title="Drafts kept and wasted")
        )
        figures.append(
            Figure(
                f"wasted_{number}",
                bars,
                f"{study.title}. Full colour: drafts that became output; pale: drafted in vain, rejected or behind a "
                f"rejected one.{cut}",
                [(name, COLOURS[name]) for name in drafting],
            )
        )
    return figures
