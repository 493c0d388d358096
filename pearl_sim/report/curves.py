"""Speed-up along what each run swept, gamma first of all: the figure of the scenario itself."""

from collections.abc import Sequence

from pearl_sim import figure
from pearl_sim.figure import COLOURS
from pearl_sim.report.section import Figure, Section
from pearl_sim.run import GAMMA, Run


def section(runs: Sequence[Run]) -> Section | None:
    """Return the figure of every run, those that sweep gamma first; None if there is no run."""
    ordered = sorted(runs, key=lambda run: GAMMA not in run.rows.columns)
    lead = (
        "Higher is faster, and 1 is autoregressive decoding; where a point lies off its line by more than its "
        "interval, simulation and theory disagree."
    )
    title = "Speed-up against gamma, and whatever else was swept"
    return Section("curves", title, lead, [figure_of(run) for run in ordered]) if ordered else None


def figure_of(run: Run) -> Figure:
    """Return the figure of one run, with what its marks mean as caption."""
    chart = figure.draw(run.rows, run.record.title)
    marks = chart.to_dict()["title"]["subtitle"]
    policies = run.rows["policy"].unique(maintain_order=True).to_list()
    caption = f"{marks[0].upper()}{marks[1:]}."
    return Figure(f"curves_{run.name}", chart, caption, [(name, COLOURS[name]) for name in policies])
