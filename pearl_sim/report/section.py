"""What a report is made of: sections, each with a sentence on how to read it, then figures, tables and text."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import altair as alt

Legend: TypeAlias = list[tuple[str, str]]
"""(label, colour); the page shows it beside the chart, so that charts stay wide on a phone."""


class Figure(NamedTuple):
    """A chart with its file name (without suffix), what it shows, and its legend.

    about:       what it is about, where the page's headings say so and a file by itself would not.
    least_width: pixels; on a narrower screen the figure scrolls.
    """

    name: str
    chart: alt.TopLevelMixin
    caption: str
    legend: Legend
    about: str = ""
    least_width: int = 0


class Table(NamedTuple):
    """A table of text cells; all columns but the first are set right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


class Text(NamedTuple):
    """A paragraph, or with `level` a heading of that level."""

    words: str
    level: int = 0


class Markup(NamedTuple):
    """HTML as it stands, made by the package itself, never from what a user wrote."""

    html: str


class Section(NamedTuple):
    """One part of the page; `lead` says in one sentence what it shows and how to read it."""

    id: str
    title: str
    lead: str
    body: Sequence[Figure | Table | Text | Markup]


def percent(share: float) -> str:
    """Return a share as people read it."""
    return f"{100 * share:.3g} %"


def number(value: float) -> str:
    """Return three significant digits, without an exponent where none is needed."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def ms(nanoseconds: float) -> str:
    """Return a duration in a unit that suits it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns" if nanoseconds else "0 ms"


def told(place: dict[str, Any]) -> str:
    """Return a place of a run in words, each key by its last part."""
    return ", ".join(
        f"{column.rpartition('.')[2].removesuffix('_ms')} = {number(value)}{' ms' if column.endswith('_ms') else ''}"
        for column, value in place.items()
    )
