"""Acceptance as servers count it, on disk: rounds, not positions.  A law can be fitted to it; nothing can be replayed.

trace.json      where it comes from (trace.Provenance)
rounds.parquet  request, drafted, accepted, rounds: so many rounds drafted so many tokens and had so many accepted
totals.parquet  instead, where only sums are known: over so many rounds, so many were drafted and accepted in all
"""

from pathlib import Path
from typing import NamedTuple

import polars as pl

from pearl_sim.errors import InputError
from pearl_sim.trace import Provenance, columns, provenance_of, read_table, refuse_rows, written_whole

COUNTS = {"request": pl.String, "drafted": pl.Int64, "accepted": pl.Int64, "rounds": pl.Int64}


class Counts(NamedTuple):
    """Counted rounds; `alike`: every round of a row drafted and accepted what the row says, else they are sums."""

    path: Path
    provenance: Provenance
    rounds: pl.DataFrame
    alike: bool


def save(found: Counts) -> None:
    """Write the counts to their path, all or nothing; InputError if they are wrong or the path is taken."""
    found = check(found)
    with written_whole(found.path, found.provenance) as part:
        found.rounds.write_parquet(part / _name(found.alike))


def load(path: Path) -> Counts:
    """Return the counts in a directory, checked; InputError names what is wrong."""
    alike = (path / _name(True)).exists()
    return check(Counts(path, provenance_of(path / "trace.json"), read_table(path / _name(alike)), alike))


def is_counts(path: Path) -> bool:
    """Return whether the directory holds counts rather than a trace."""
    return any((path / _name(alike)).exists() for alike in (True, False))


def check(found: Counts) -> Counts:
    """Return the counts, columns in order; InputError at the first row that cannot be."""
    file = found.path / _name(found.alike)
    rounds = columns(file, found.rounds, COUNTS)
    if rounds.is_empty():
        raise InputError(file, "has no rounds")
    for column in ("drafted", "accepted", "rounds"):
        refuse_rows(file, rounds, column, pl.col(column) < 0, "must be 0 or more")
    refuse_rows(file, rounds, "accepted", pl.col("accepted") > pl.col("drafted"), "is more than was drafted")
    return found._replace(rounds=rounds)


def _name(alike: bool) -> str:
    return "rounds.parquet" if alike else "totals.parquet"
