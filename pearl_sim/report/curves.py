"""Speed-up along what each run swept, gamma first of all: the figure of the scenario itself."""

from collections.abc import Sequence

from pearl_sim import figure
from pearl_sim.figure import COLOURS
from pearl_sim.report.section import Figure, Section
from pearl_sim.run import Run


def section(runs: Sequence[Run]) -> Section | None:
    """Return the figure of every run; None if there is none."""
    return runs and Section(
        "curves",
        "Speed-up against gamma, and whatever else was swept",
        "Higher is faster, and 1 is autoregressive decoding; where a point lies off its line by more than its interval, "
        "simulation and theory disagree.",
        [figure_of(run) for run in runs],
    ) or None


def figure_of(run: Run) -> Figure:
    """Return the figure of one run, with its title and what its marks mean as caption."""
    chart = figure.draw(run.rows, run.record.title)
    marks = chart.to_dict()["title"]["subtitle"]
    policies = run.rows["policy"].unique(maintain_order=True).to_list()
    caption = f"{run.record.title}. {marks[0].upper()}{marks[1:]}."
    return Figure(f"curves_{run.name}", chart, caption, [(name, COLOURS[name]) for name in policies])
