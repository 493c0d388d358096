"""The report assembled: sections in order, one HTML file that needs nothing else, and every chart as PNG and SVG."""

import json
import re
import shutil
import tempfile
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import vl_convert

from pearl_sim import __version__
from pearl_sim.errors import InputError
from pearl_sim.report import (
    acceptance,
    against_runs,
    basis,
    curves,
    devices,
    explorer,
    founding,
    gantt,
    headline,
    sensitivity,
    time_use,
    win_map,
)
from pearl_sim.report.section import Figure, Markup, Section, Table, Text
from pearl_sim.report.study import closed_form, studied
from pearl_sim.run import Run

CONFIG: dict[str, Any] = {
    "font": "system-ui, 'Segoe UI', 'Liberation Sans', Arial, sans-serif",
    "background": None,
    "view": {"stroke": None},
    "axis": {
        "gridColor": "#e6e6e6",
        "labelSeparation": 6,
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
    },
    "header": {"labelFontSize": 13},
}
NO_LEGEND = {"legend": {"disable": True}}
"""In the page legends are HTML: they wrap where a chart's own would take its width."""

NUMERIC = re.compile(r"[-\d.,]+( (to [\d.,]+|us|ms|s|ns))?$")
"""Cells of a column that is set right, for its digits to stand below each other."""

SHORT = 22

WRAP, WRAP_WIDE = 90, 140
"""Characters of a caption on a line, in a chart's own file."""

WIDE = 480
"""Charts wider than this by themselves get the page's whole width; others stand two abreast."""


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return every section of the report on these runs; InputError if a trace that they need is gone or changed."""
    studies = studied(runs)
    fits = [(study, closed_form(study)) for study in studies]
    known = [(study, found) for study, found in fits if found]
    marks = [win_map.Mark(study.run.trace.name if study.run.trace else study.run.name, found) for study, found in known]
    possible = [
        headline.section(runs, studies),
        win_map.section(marks),
        curves.section([run for run in runs if not founding.is_noted(run)]),
        sensitivity.section(studies),
        founding.section(runs),
        acceptance.section(studies),
        time_use.section(studies),
        gantt.section(studies),
        explorer.section(known[0][1] if known else None),
        devices.section(studies),
        against_runs.section(studies),
        basis.section(runs),
    ]
    return [section for section in possible if section]


def write(runs: Sequence[Run], out: Path) -> Path:
    """Write the report to `out`, and its charts to a directory beside it, whose path is returned.

    An earlier report is replaced; InputError if the directory of charts holds anything else, or two runs have the
    same name.  Nothing is left half-written.
    """
    charts = out.with_name(f"{out.stem}_charts")
    _refuse_foreign(out, charts)
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(name, "is the name of two of the runs; name each run once")
    parts = sections(runs)
    drawn = specs(parts)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.stem}-", dir=out.parent))
    try:
        (part / "charts").mkdir()
        for figure in figures(parts):
            svg = vl_convert.vegalite_to_svg(json.dumps(_alone(figure, drawn[figure.name])))
            (part / "charts" / f"{figure.name}.svg").write_text(svg, encoding="utf-8")
            (part / "charts" / f"{figure.name}.png").write_bytes(vl_convert.svg_to_png(svg, ppi=144))
        (part / "report.html").write_text(html(parts, drawn, charts.name), encoding="utf-8")
        if charts.exists():
            shutil.rmtree(charts)
        (part / "charts").replace(charts)
        (part / "report.html").replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return charts


def figures(parts: Sequence[Section]) -> list[Figure]:
    """Return the figures of these sections, in order."""
    return [item for part in parts for item in part.body if isinstance(item, Figure)]


def specs(parts: Sequence[Section]) -> dict[str, dict[str, Any]]:
    """Return the Vega-Lite specification of every figure by its name, in order."""
    return {figure.name: figure.chart.to_dict() for figure in figures(parts)}


def _alone(figure: Figure, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of a figure that stands by itself: on white, with its caption under its title."""
    words = f"{figure.about}. {figure.caption}" if figure.about else figure.caption
    title = {
        "text": _heading(spec),
        "subtitle": textwrap.wrap(words, WRAP_WIDE if _is_wide(spec) else WRAP),
        "subtitleColor": "#57606a",
        "anchor": "start",
        "offset": 12,
    }
    return spec | {"title": title, "config": CONFIG | {"background": "white"}}


def _heading(spec: dict[str, Any]) -> str:
    title = spec["title"]
    return str(title["text"] if isinstance(title, dict) else title)


def _is_wide(spec: dict[str, Any]) -> bool:
    return "columns" in spec or "vconcat" in spec or spec.get("width", 0) > WIDE


def html(parts: Sequence[Section], drawn: dict[str, dict[str, Any]], charts: str) -> str:
    """Return the page; `charts` is the directory that its links to PNG and SVG point to."""
    # Charts that show the same table share it; titles and legends of the page are HTML.
    data = {name: rows for spec in drawn.values() for name, rows in spec.get("datasets", {}).items()}
    shown = {
        figure: {key: value for key, value in spec.items() if key not in {"datasets", "title", "config", "$schema"}}
        | {"uses": list(spec.get("datasets", {}))}
        for figure, spec in drawn.items()
    }
    scripts = "".join(
        f'<script type="application/json" id="report-{name}">{_json(content)}</script>\n'
        for name, content in (("data", data), ("specs", shown), ("config", CONFIG | NO_LEGEND))
    )
    contents = "".join(f'<li><a href="#{part.id}">{part.id.replace("-", " ")}</a></li>' for part in parts)
    body = "\n".join(_section(part, drawn, charts) for part in parts)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="pearl_sim {__version__}">
<link rel="icon" href="data:,">
<title>Parallel speculative decoding: the design space</title>
<style>{_own("page.css")}</style>
</head>
<body>
<header>
<h1>Parallel speculative decoding: the design space</h1>
<nav aria-label="Contents"><ul>{contents}</ul></nav>
</header>
<main>
{body}
</main>
<footer>Made by pearl_sim {__version__} on {made}. Policies: ar, autoregressive; sd, speculative decoding; pearl;
pearl-no-pre and pearl-no-post, PEARL without pre-verify or post-verify. One colour each throughout.</footer>
{scripts}<script>{_library()}</script>
<script>{_own("explorer.js")}</script>
<script>{_own("page.js")}</script>
</body>
</html>
"""


def _section(part: Section, specs: dict[str, dict[str, Any]], charts: str) -> str:
    body, pending = [], []
    for item in [*part.body, None]:
        if isinstance(item, Figure):
            pending.append(_figure(item, specs[item.name], charts))
            continue
        if pending:
            body.append(f'<div class="row">{"".join(pending)}</div>')
            pending = []
        if item is not None:
            body.append(_item(item))
    return (
        f'<section id="{part.id}"><h2>{escape(part.title)}</h2>\n<p class="lead">{escape(part.lead)}</p>\n'
        f"{chr(10).join(body)}</section>"
    )


def _item(item: Table | Text | Markup) -> str:
    if isinstance(item, Markup):
        return item.html
    if isinstance(item, Text):
        return f"<h{item.level}>{escape(item.words)}</h{item.level}>" if item.level else _paragraph(item.words)
    kinds = [_kind(column) for column in zip(*item.rows, strict=True)]
    heads = _cells('th scope="col"', kinds, item.headings)
    rows = "".join(f"<tr>{_cells('td', kinds, row)}</tr>" for row in item.rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _kind(column: Sequence[str]) -> str:
    """Return how a column is set: digits to the right, short words on one line, other words as they fit."""
    if all(map(NUMERIC.match, column)):
        return "digits"
    return "short" if max(map(len, column)) <= SHORT else "words"


def _cells(element: str, kinds: Sequence[str], texts: Sequence[str]) -> str:
    closing = element.partition(" ")[0]
    return "".join(
        f'<{element} class="{kind}">{escape(text)}</{closing}>' for kind, text in zip(kinds, texts, strict=True)
    )


def _paragraph(words: str) -> str:
    return f'<p class="words">{escape(words)}</p>'


def _figure(figure: Figure, spec: dict[str, Any], charts: str) -> str:
    heading = _heading(spec)
    entries = "".join(
        f'<li><span style="background:{colour}"></span>{escape(label)}</li>' for label, colour in figure.legend
    )
    legend = f'<ul class="legend">{entries}</ul>' if entries else ""
    files = " ".join(f'<a href="{charts}/{figure.name}.{kind}" download>{kind.upper()}</a>' for kind in ("png", "svg"))
    wide = " wide" if _is_wide(spec) else ""
    return (
        f'<figure id="{figure.name}" class="chart-figure{wide}" data-least-width="{figure.least_width}">'
        f"<h3>{escape(heading)}</h3>{legend}"
        f'<div class="scroll"><div class="chart" role="img" aria-label="{escape(heading)}"></div></div>'
        f'<figcaption>{escape(figure.caption)} <span class="files">{files}</span></figcaption></figure>'
    )


def _json(content: object) -> str:
    """Return JSON that can stand inside a script element."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _library() -> str:
    """Return vega, vega-lite and vega-embed as one script."""
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub demands what it may be without
    return bundle.replace("</script", "<\\/script")


def _own(name: str) -> str:
    return resources.files("pearl_sim.report").joinpath(name).read_text(encoding="utf-8")


def _refuse_foreign(out: Path, charts: Path) -> None:
    for parent in out.parents:
        if parent.exists() and not parent.is_dir():
            raise InputError(parent, "is a file, not a directory; choose another --out")
    if out.suffix != ".html":
        raise InputError(out, "must end in .html")
    if out.is_dir():
        raise InputError(out, "is a directory; choose another --out")
    if charts.exists() and not (charts.is_dir() and all(file.suffix in (".png", ".svg") for file in charts.iterdir())):
        raise InputError(charts, "exists and holds more than an earlier report's charts; choose another --out")
