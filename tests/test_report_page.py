"""The report as a reader meets it: one file that opens offline in a real browser, and answers when a slider moves."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import browser
import numpy as np
import polars as pl
import pytest
from test_report import made

from pearl_sim import run, theory
from pearl_sim.errors import InputError
from pearl_sim.evaluate import MEASURES
from pearl_sim.policies import POLICIES
from pearl_sim.report import explorer, page
from pearl_sim.run import GAMMA, Record

SECTIONS = [
    "answer",
    "win-map",
    "curves",
    "sensitivity",
    "founding",
    "acceptance",
    "time",
    "gantt",
    "explorer",
    "devices",
    "fidelity",
    "basis",
]
SIX_MB = 6_000_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    replayed = made("bundled_pair", out, **{"workload.requests": "3", "sweep.policy.gamma": "[2, 4]"})
    noted = made(
        "reading_note",
        out,
        **{"workload.requests": "2", "workload.tokens": "60", "sweep.acceptance.alpha": "[0.4, 0.9]"},
    )
    return [noted, replayed]


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """Return the page as the command line makes it."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    command = [sys.executable, "-c", "from pearl_sim.cli import main; main()", "report", *(r.directory for r in runs)]
    done = subprocess.run([*command, "--out", out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    told = rf"wrote {out} \(\d\.\d MB\); each chart as PNG and SVG in {out.parent}/report_charts\n"
    assert re.fullmatch(told, done.stderr)
    return out


@pytest.fixture(scope="module")
def chromium(report, tmp_path_factory):
    if not browser.found():
        if os.environ.get("PEARL_SIM_BROWSER") == "required":
            pytest.fail("no browser, and PEARL_SIM_BROWSER says that there must be one")
        pytest.skip(f"no browser here; any of {', '.join(browser.NAMES)} would do")
    opened = browser.Browser(tmp_path_factory.mktemp("profile"))
    opened.open(report.as_uri())
    opened.run("report.drawn.then(() => true)")
    yield opened
    opened.close()


class Elements(HTMLParser):
    """Collects every element of a page with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Keep the element."""
        self.found.append((tag, dict(attrs)))


def test_the_page_is_one_file_with_every_section_and_chart(report):
    text = report.read_text(encoding="utf-8")
    assert len(text.encode()) < SIX_MB
    elements = Elements(text).found
    assert [own["id"] for tag, own in elements if tag == "section"] == SECTIONS
    assert not [tag for tag, own in elements if tag != "a" and ({"src", "srcset"} & set(own))]
    assert all(own["href"] == "data:," for tag, own in elements if tag == "link")
    figures = {own["id"] for tag, own in elements if tag == "figure"}
    charts = report.parent / "report_charts"
    assert {file.name for file in charts.iterdir()} == {f"{name}.{kind}" for name in figures for kind in ("png", "svg")}
    linked = {own["href"] for tag, own in elements if tag == "a" and "download" in own}
    assert linked == {f"report_charts/{file.name}" for file in charts.iterdir()}
    for name in figures:
        assert (charts / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<path" in (charts / f"{name}.svg").read_text(encoding="utf-8")
    for section in text.split("<section ")[1:]:
        assert re.search(r'<p class="lead">[A-Z][^<]{40,}\.</p>', section), "a sentence says how to read it"


def test_what_a_user_wrote_cannot_become_markup(runs):
    title = "</script><b>bold</b>"
    noted = runs[0]
    hostile = dataclasses.replace(noted, record=noted.record.model_copy(update={"title": title}))
    parts = page.sections([hostile])
    text = page.html(parts, page.specs(parts), "charts")
    assert "&lt;/script&gt;&lt;b&gt;bold" in text
    assert "<b>" not in text.split("<script", maxsplit=1)[0]
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    # Three of data, the library, the explorer, the page.
    assert len(scripts) == 6
    assert all(json.loads(script) for script in scripts[:3])


def test_nothing_foreign_is_replaced_and_nothing_half_written(runs, tmp_path, monkeypatch):
    precious = tmp_path / "report_charts" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    with pytest.raises(InputError, match="holds more than"):
        page.write(runs, tmp_path / "report.html")
    with pytest.raises(InputError, match="is the name of two of the runs"):
        page.write([*runs, runs[0]], tmp_path / "twice.html")
    with pytest.raises(InputError, match=r"must end in \.html"):
        page.write(runs, tmp_path / "report.pdf")
    with pytest.raises(InputError, match="is a file, not a directory"):
        page.write(runs, precious / "report.html")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "sections", lambda runs: [explorer.section(None)])
    monkeypatch.setattr(page.vl_convert, "vegalite_to_svg", interrupt)
    with pytest.raises(KeyboardInterrupt):
        page.write(runs, tmp_path / "again.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report_charts"]


def test_it_opens_offline_without_a_complaint_and_draws_every_chart(chromium, report):
    requested = {event["request"]["url"] for event in chromium.told("Network.requestWillBeSent")}
    assert {url for url in requested if not url.startswith("data:")} == {report.as_uri()}
    complaints = chromium.told("Runtime.exceptionThrown") + chromium.told("Log.entryAdded")
    assert not complaints
    said = chromium.told("Runtime.consoleAPICalled")
    assert not said, said
    drawn = chromium.run(
        "[...document.querySelectorAll('figure')].map(f => [f.id, f.querySelectorAll('.chart svg path').length])"
    )
    assert len(drawn) >= 12
    assert not [name for name, paths in drawn if paths < 4]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_it_fits_the_screen_and_reads_in_the_dark(chromium, width, scheme):
    chromium.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    chromium.send(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
    )
    # The page waits a moment for the width to settle.
    chromium.run("new Promise(done => setTimeout(done, 300))")
    chromium.run("report.drawn.then(() => true)")
    assert chromium.run("document.documentElement.scrollWidth") <= width
    wide = "f => f.querySelector('svg').getBoundingClientRect().width > innerWidth"
    too_wide = chromium.run(f"[...document.querySelectorAll('figure')].filter({wide}).map(f => f.id)")
    assert too_wide == ([] if width > 1000 else ["gantt_1"]), "only the Gantt chart scrolls, inside its frame"
    lightness = (
        "(c => c.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 765)"
        "(getComputedStyle(document.querySelector('{}')).{})"
    )
    ink = chromium.run(lightness.format("#curves_bundled_pair .role-axis-label text", "fill"))
    paper = chromium.run(lightness.format("body", "backgroundColor"))
    assert abs(ink - paper) > 0.6
    assert (paper < 0.5) == (scheme == "dark")


def test_a_slider_moves_the_curves_and_the_table(chromium):
    state = (
        "JSON.stringify([report.views.explorer.data('explored'), "
        "document.querySelector('#explorer svg').innerHTML.length, "
        "document.getElementById('explorer-table').innerText])"
    )
    move = (
        "(input => {{ input.value = {}; input.dispatchEvent(new Event('input', {{bubbles: true}})); "
        "return report.views.explorer.runAsync().then(() => input.value); }})(document.getElementById('x-{}'))"
    )
    seen = [chromium.run(state)]
    for name, value in (("alpha", 0.5), ("gamma", 9), ("tDraft", 0.5), ("tTarget", 1.1), ("sync", 2)):
        chromium.run(move.format(value, name))
        seen.append(chromium.run(state))
        assert seen[-1] != seen[-2], f"{name} changes nothing"
    rows = json.loads(seen[-1])[0]
    sliders = chromium.run(
        "Object.fromEntries([...document.querySelectorAll('#explorer-form input')].map("
        "i => [i.name, i.dataset.scale === 'log' ? 10 ** Number(i.value) : Number(i.value)]))"
    )
    duration = theory.round_time(sliders["tDraft"], sliders["tTarget"], sliders["sync"])
    for row in rows:
        exact = theory.speed(POLICIES[row["policy"]](row["gamma"]), theory.iid(sliders["alpha"]), duration)
        assert row["speedup"] == pytest.approx(exact * sliders["tTarget"], rel=1e-9)
    labelled = "[...document.querySelectorAll('input')].every(i => i.labels.length === 1 && i.ariaValueText !== '')"
    assert chromium.run(labelled)


def test_the_pages_formulas_are_theorys(chromium):
    settings = [
        {"alpha": alpha, "gamma": gamma, "tDraft": t_draft, "tTarget": t_target, "sync": sync}
        for alpha in (0.0, 0.3, 0.8, 0.99)
        for gamma in (1, 2, 5, 17)
        for t_draft, t_target, sync in ((1.0, 10.0, 0.0), (2.0, 3.0, 0.7), (5.0, 1.0, 0.2))
    ]
    script = f"{json.dumps(settings)}.map(at => {json.dumps(list(POLICIES))}.map(name => explorer.speed(name, at)))"
    for at, speeds in zip(settings, chromium.run(script), strict=True):
        duration = theory.round_time(at["tDraft"], at["tTarget"], at["sync"])
        for make, speed in zip(POLICIES.values(), speeds, strict=True):
            exact = theory.speed(make(at["gamma"]), theory.iid(at["alpha"]), duration)
            assert speed == pytest.approx(exact, rel=1e-9)


@pytest.mark.slow
def test_a_run_of_a_million_rows_makes_a_report_that_still_opens(tmp_path):
    """Aggregated, and it says so; the speeds are made up, only their number matters."""
    gammas, alphas, targets = range(1, 11), np.linspace(0.5, 0.95, 50), np.linspace(1, 20, 1000)
    axes = [pl.DataFrame({GAMMA: gammas}), pl.DataFrame({"acceptance.alpha": alphas})]
    axes += [pl.DataFrame({"cost.target_ms": targets}), pl.DataFrame({"policy": ["sd", "pearl"]})]
    rows = axes[0]
    for axis in axes[1:]:
        rows = rows.join(axis, how="cross")
    speedup = np.random.default_rng(0).uniform(0.5, 4, len(rows))
    rows = rows.with_columns(gamma=pl.col(GAMMA), **dict.fromkeys(MEASURES, pl.lit(None, pl.Float64)))
    rows = rows.with_columns(speedup=speedup, tokens_per_s=100 * speedup)
    rows.select("policy", "gamma", pl.exclude("policy", "gamma")).write_parquet(tmp_path / "results.parquet")
    settings = {
        "acceptance": {"law": "iid"},
        "cost": {"model": "constant", "draft": "1 ms"},
        "policy": {"names": ["sd", "pearl"]},
        "workload": {"requests": 4, "tokens": 100},
    }
    sweep = {
        GAMMA: {"start": 1, "stop": 10, "num": 10},
        "acceptance.alpha": {"start": 0.5, "stop": 0.95, "num": 50},
        "cost.target": {"start": "1 ms", "stop": "20 ms", "num": 1000},
    }
    record = Record(
        scenario="big",
        title="Big",
        driver="kernel",
        pearl_sim="0",
        created="2026-01-01T00:00:00+00:00",
        settings=settings,
        sweep=sweep,
        traces={},
    )
    record.write(tmp_path)
    read = run.read(tmp_path)
    assert len(read.rows) == 1_000_000
    page.write([read], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 10_000_000
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "9 of 500 panels shown" in text
    assert re.search(r"\d+ of 1000 values shown", text)
    assert "50,000" in text, "the places of the run are counted"
