"""What was accepted: by depth of the chain, by length of the run, by category of prompt."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl

from pearl_sim import trace
from pearl_sim.drivers.walk import walk
from pearl_sim.figure import COLOURS, Chart, colour, shape
from pearl_sim.judge import Censored, Request
from pearl_sim.metrics import ratio
from pearl_sim.report.section import Figure, Section, Text
from pearl_sim.report.study import Study
from pearl_sim.rules import Policy
from pearl_sim.survival import Checks, estimate

LEAST_CHECKED = 30
"""Depths checked less often are left out: their share would be noise."""
LONGEST_SHOWN = 24
MOST_CATEGORIES = 20
_WHOLE = alt.Scale(zero=False, nice=False, padding=12)
RECORDED, GEOMETRIC = "#56B4E9", "#D55E00"


def by_depth(study: Study) -> pl.DataFrame:
    """Return policy, depth, checked, acceptance with its 95 % interval over requests (low, high), SD and PEARL.

    Each at its best gamma; every policy of the place where neither played.
    """
    rows = []
    for name in [name for name in ("sd", "pearl") if name in study.played] or study.drafting:
        for depth in estimate(checks(study.played[name].policy, study.requests, study.censored)):
            if depth.checked >= LEAST_CHECKED:
                rows.append((name, depth.depth, depth.checked, *depth.conditional))
    schema = {"policy": pl.String, "depth": pl.Int64, "checked": pl.Int64}
    return pl.DataFrame(rows, schema | dict.fromkeys(("acceptance", "low", "high"), pl.Float64), orient="row")


def checks(policy: Policy, requests: Sequence[Request], censored: Sequence[Censored] | None) -> Checks:
    """Return the drafts that `policy` has checked and accepted, by request and depth."""
    cuts = [None] * len(requests) if censored is None else [[cut] for cut in censored]
    depths = [walk(policy, [own], cut, rounds=False).depths for own, cut in zip(requests, cuts, strict=True)]
    found = np.zeros((2, len(requests), max(map(len, depths), default=0)), np.int64)
    for request, own in enumerate(depths):
        found[:, request, : len(own)] = np.array(own, np.int64).reshape(-1, 3)[:, 1:].T
    return Checks(*found)


def chains(requests: Sequence[Request], censored: Sequence[Censored] | None = None) -> list[list[tuple[int, bool]]]:
    """Return each request's chains, (length, whether a refusal ended it), in order.

    They start at token 1, and after every token the target writes; what ends one that is censored nobody knows.
    """
    found: list[list[tuple[int, bool]]] = []
    for number, request in enumerate(requests):
        runs, place, own = request.runs.tolist(), 1, []
        while place < request.limit:
            own.append((runs[place], censored is None or not censored[number][place]))
            place += runs[place] + 1
        found.append(own)
    return found


def run_lengths(requests: Sequence[Request], censored: Sequence[Censored] | None = None) -> pl.DataFrame:
    """Return length, observed, geometric: the shares of chains of each length, and the geometric law that fits them.

    The last row holds all chains of LONGEST_SHOWN or more; censored ones count where the record ends.
    """
    found = [chain for own in chains(requests, censored) for chain in own]
    lengths, refusals = np.array([length for length, _ in found], np.int64), sum(ended for _, ended in found)
    if not len(lengths):
        return pl.DataFrame(schema={"length": pl.Int64, "observed": pl.Float64, "geometric": pl.Float64})
    alpha = lengths.sum() / max(1, lengths.sum() + refusals)
    counts = np.bincount(np.minimum(lengths, LONGEST_SHOWN), minlength=LONGEST_SHOWN + 1)
    depth = np.arange(LONGEST_SHOWN + 1)
    geometric = np.where(depth < LONGEST_SHOWN, (1 - alpha) * alpha**depth, alpha**depth)
    return pl.DataFrame({"length": depth, "observed": counts / len(lengths), "geometric": geometric})


def by_category(study: Study) -> pl.DataFrame:
    """Return category, requests, acceptance, low, high: share of checked drafts accepted, most requests first.

    Empty where no trace says what its prompts are about.
    """
    schema = {"category": pl.String, "requests": pl.Int64}
    schema |= dict.fromkeys(("acceptance", "low", "high"), pl.Float64)
    if not study.run.trace:
        return pl.DataFrame(schema=schema)
    kinds = trace.load(study.run.trace).requests["category"].to_list()
    of_kind: dict[str, list[list[tuple[int, bool]]]] = {}
    for kind, own in zip(kinds, chains(study.requests, study.censored), strict=False):
        if kind is not None and own:
            of_kind.setdefault(kind, []).append(own)
    rows = []
    for kind, of_requests in of_kind.items():
        accepted = [sum(length for length, _ in request) for request in of_requests]
        refused = [sum(ended for _, ended in request) for request in of_requests]
        rows.append((kind, len(of_requests), *ratio(accepted, np.add(accepted, refused))))
    return pl.DataFrame(rows, schema, orient="row", strict=False).sort("requests", "category", descending=[True, False])


def section(studies: Sequence[Study]) -> Section | None:
    """Return the three figures of every place studied; None where nothing drafts."""
    body: list[Figure | Text] = []
    for number, study in enumerate(studies, start=1):
        body += [*study.heading(len(studies)), *_figures(study, number)] if study.drafting else []
    if not body:
        return None
    return Section(
        "acceptance",
        "What was accepted",
        "A flat line by depth and bars on the dots are what the usual i.i.d. model assumes; where they differ, "
        "speeds computed from one acceptance rate are off.",
        body,
    )


def _figures(study: Study, number: int) -> list[Figure]:
    cut = study.censored
    depths, lengths, kinds = by_depth(study), run_lengths(study.requests, cut), by_category(study)
    policies = depths["policy"].unique(maintain_order=True).to_list()
    base = alt.Chart(depths).encode(
        x=alt.X(
            "depth:Q", title="depth: place of the draft token in its chain", axis=alt.Axis(tickMinStep=1), scale=_WHOLE
        ),
        color=colour(policies),
        tooltip=["policy", "depth", "checked", alt.Tooltip("acceptance:Q", format=".3f")],
    )
    y = alt.Y("acceptance:Q", title="acceptance, given all before", scale=alt.Scale(domain=[0, 1]))
    by_depth_chart = alt.layer(
        base.mark_line(strokeWidth=1.5).encode(y=y),
        base.mark_rule().encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y, shape=shape(policies)),
    ).properties(width=420, height=240, title="Conditional acceptance by depth")
    length = alt.X(
        "length:Q", title="accepted tokens of a chain", axis=alt.Axis(tickMinStep=1, grid=False), scale=_WHOLE
    )
    lengths_chart = alt.layer(
        alt.Chart(lengths)
        .mark_bar(color=RECORDED, size=9)
        .encode(x=length, y=alt.Y("observed:Q", title="share of chains"), tooltip=["length", _share("observed")]),
        alt.Chart(lengths)
        .mark_point(color=GEOMETRIC, filled=True, size=40, opacity=1)
        .encode(x=length, y="geometric:Q", tooltip=["length", _share("geometric")]),
    ).properties(width=420, height=240, title="How long chains are accepted")
    figures = []
    if len(depths):
        words = (
            "Of the drafts checked at each depth, every earlier one of the chain accepted, the share "
            "accepted, with its 95 % interval over requests; depths checked fewer than "
            f"{LEAST_CHECKED} times are left out."
        )
        figures.append(
            Figure(f"depth_{number}", by_depth_chart, words, [(name, COLOURS[name]) for name in policies], study.title)
        )
    if len(lengths):
        words = (
            f"Bars: share of chains accepted for exactly so many tokens ({LONGEST_SHOWN}: or more). "
            "Dots: the geometric law of equal mean, which i.i.d. acceptance would give."
            + (" Some chains outlive the record; they stand where it ends, and are longer in truth." if cut else "")
        )
        legend = [("observed", RECORDED), ("geometric law", GEOMETRIC)]
        figures.append(Figure(f"run_lengths_{number}", lengths_chart, words, legend, study.title))
    if len(kinds) > 1:
        left_out = f" The {MOST_CATEGORIES} largest of {len(kinds)}." if len(kinds) > MOST_CATEGORIES else ""
        words = (
            f"Share of checked drafts accepted, by category of prompt, with its 95 % interval over requests.{left_out}"
        )
        chart = _categories(kinds[:MOST_CATEGORIES])
        figures.append(Figure(f"categories_{number}", chart, words, [], study.title))
    return figures


def _categories(kinds: pl.DataFrame) -> Chart:
    named = kinds.with_columns(
        label=pl.format("{} ({})", "category", "requests"),
        low=pl.col("low").fill_nan(None),
        high=pl.col("high").fill_nan(None),
    )
    order = named.sort("acceptance", descending=True)["label"].to_list()
    y = alt.Y("label:N", sort=order, title=None)
    base = alt.Chart(named).encode(y=y, tooltip=["category", "requests", *map(_share, ("acceptance", "low", "high"))])
    x = alt.X("acceptance:Q", title="acceptance", scale=alt.Scale(domain=[0, 1], clamp=True))
    return alt.layer(
        base.mark_rule(color=RECORDED, strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        base.mark_point(color=RECORDED, filled=True, size=70, opacity=1).encode(x=x),
    ).properties(width=420, height=28 * len(kinds), title="Acceptance by category of prompt (requests)")


def _share(field: str) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", format=".3f")
