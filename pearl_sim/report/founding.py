"""The founding example: what the reading note estimated, what is exact, what is simulated, and why they differ."""

from collections.abc import Sequence

import polars as pl

from pearl_sim import theory
from pearl_sim.report import curves
from pearl_sim.report.section import Figure, Section, Table, Text, told
from pearl_sim.run import Place, Run

MEASURES = ("note_tokens_per_t_draft", "tokens_per_t_draft", "steady_tokens_per_t_draft")
SHOWN, EXAMPLE_ALPHA = 4, 0.9
WHY = (
    "The note weights a chain that passes j post-verify rounds by alpha^(j gamma) (1 - alpha). Those weights do not "
    "sum to one, so its mean number of rounds is too small and its speed too high: no acceptance whatever lets PEARL "
    "exceed gamma tokens a round. Where the note's value stands above that ceiling it cannot be true. For SD it "
    "leaves out the token that the target itself writes in every round, and counts drafts behind a rejected one."
)


def section(runs: Sequence[Run]) -> Section | None:
    """Return the comparison for every run that asked for the note's estimate; None if there is none."""
    noted = [run for run in runs if is_noted(run)]
    if not noted:
        return None
    body: list[Figure | Table | Text] = []
    for run in noted:
        rows = run.rows.filter(pl.col("note_tokens_per_t_draft").is_not_null())
        example = [place for place in run.places() if place.get("acceptance.alpha") == EXAMPLE_ALPHA]
        places = [place for place in run.places(SHOWN) if place not in example] + example
        cells = []
        for place in places:
            for row in rows.filter(*(pl.col(key) == value for key, value in place.items())).iter_rows(named=True):
                ceiling = _ceiling(run, place, row["policy"], row["gamma"])
                cells.append(
                    (
                        told(place) or run.name,
                        f"{row['policy']}, gamma {row['gamma']}",
                        *("-" if row[key] is None else f"{row[key]:.4f}" for key in MEASURES),
                        f"{ceiling:.4f}" if ceiling else "-",
                    )
                )
        headings = ("setting", "policy", "note's estimate", "simulated", "exact, long run", "ceiling")
        body += [curves.figure_of(run), Table(headings, cells)]
    return Section(
        "founding",
        "The founding example: a plausible estimate that is wrong",
        "Tokens per t_draft three times over; simulated and exact should agree, and the note's estimate should be "
        "compared with the ceiling, which no acceptance can pass.",
        [*body, Text(WHY)],
    )


def is_noted(run: Run) -> bool:
    """Return whether the run asked for the note's estimate."""
    return run.rows["note_tokens_per_t_draft"].count() > 0


def _ceiling(run: Run, place: Place, policy: str, gamma: int) -> float | None:
    """Return the tokens per t_draft that PEARL cannot exceed there, whatever is accepted and however free hand-over."""
    if policy != "pearl":
        return None
    cost = run.point(place, gamma).cost
    assert cost.model == "constant"  # the note's estimate is made for no other
    return theory.pearl_ceiling(gamma, cost.draft, cost.target) * cost.draft
