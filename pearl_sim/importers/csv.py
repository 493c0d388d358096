"""A table that anyone can write: a header, then a row a round, or a row a stretch between corrections.

accepted[,drafted][,request]   a round of speculative decoding: drafts accepted, drafts written (--gamma if left out)
between_corrections[,request]  output tokens from one correction to the next, the later one included

Rows are in the order of decoding; rows of a request stand together; without `request` the file is one request.
Tokens between corrections give every run of an ordinary draft model, for every gamma; rounds are censored where all
drafts were accepted.
"""

import csv
from array import array
from collections.abc import Iterator
from pathlib import Path

from pearl_sim.errors import InputError
from pearl_sim.importers.lines import count, numbered
from pearl_sim.importers.recording import FIRST, INSIDE, Recording, Rounds, provenance
from pearl_sim.trace import Trace

ALLOWED = {"accepted", "drafted", "between_corrections", "request"}
ENDLESS = 2**62
"""Drafted, where a stretch goes on until a draft is wrong: nothing was cut."""


def read(file: Path, out: Path, gamma: int | None = None) -> Trace:
    """Return the trace of `file`, to be saved at `out`; `gamma` is what every round drafted, if no column says it.

    InputError names the file and line of what is wrong.
    """
    recording = Recording(censored=True)
    longest, stretches = 0, False
    current: tuple[str, str] | None = None
    drafted, accepted = array("q"), array("q")

    def finish() -> None:
        if current is not None:
            runs, censored = Rounds(drafted, accepted).runs()
            recording.add(*current, file.stem, 0, runs, censored=censored)

    for where, name, most, some in _rows(file, gamma):
        if current is None or name != current[1]:
            finish()
            current, drafted, accepted = (where, name), array("q"), array("q")
        drafted.append(most)
        accepted.append(some)
        stretches, longest = most == ENDLESS, max(longest, most)
    finish()
    if not recording.requests:
        raise InputError(file, "has no rows below its header")
    notes = [FIRST, "prompt lengths were not recorded and stand as 0; tokens, margins and step times were not recorded"]
    if stretches:
        notes.append("run is between_corrections - 1 after a correction; further on it follows for an ordinary draft")
    else:
        notes += [INSIDE, *([] if gamma is None else [f"every round is taken to have drafted {gamma}, as stated"])]
    limit = None if stretches else max(longest, 1)
    return recording.trace(out, provenance("csv", [file], {"gamma": gamma}, out, limit, notes))


def _rows(file: Path, gamma: int | None) -> Iterator[tuple[str, str, int, int]]:
    """Yield (where, request, drafted, accepted) of every row."""
    header: list[str] = []
    for where, line in numbered(file):
        try:
            (cells,) = csv.reader([line], strict=True)
        except csv.Error as error:
            raise InputError(where, f"is not CSV: {error}") from None
        cells = [cell.strip() for cell in cells]
        if not header:
            header = _header(where, cells, gamma)
            continue
        if len(cells) != len(header):
            raise InputError(where, f"has {len(cells)} cells; the header has {len(header)}: {', '.join(header)}")
        row = dict(zip(header, cells, strict=True))
        numbers = {key: _whole(f"{where}: {key}", cell) for key, cell in row.items() if key != "request"}
        name = row.get("request", file.stem)
        if "between_corrections" in numbers:
            if numbers["between_corrections"] < 1:
                raise InputError(f"{where}: between_corrections", "0 must be 1 or more: the correction is counted")
            yield where, name, ENDLESS, numbers["between_corrections"] - 1
            continue
        drafted, accepted = numbers.get("drafted", gamma or 0), numbers["accepted"]
        if accepted > drafted:
            raise InputError(where, f"accepted = {accepted} is more than was drafted, {drafted}")
        yield where, name, drafted, accepted


def _header(where: str, cells: list[str], gamma: int | None) -> list[str]:
    given = set(cells)
    if len(given) < len(cells) or given - ALLOWED or len(given & {"accepted", "between_corrections"}) != 1:
        right = "accepted[,drafted][,request] or between_corrections[,request]"
        raise InputError(where, f"the columns are {', '.join(cells)}; must be {right}")
    if "accepted" not in given and "drafted" in given:
        raise InputError(where, "drafted says nothing about tokens between corrections; remove it")
    if "accepted" in given and "drafted" not in given and gamma is None:
        raise InputError(where, "nothing says how many tokens a round drafted; add a column drafted, or --gamma N")
    if gamma is not None and (given & {"drafted", "between_corrections"}):
        raise InputError("--gamma", f"changes nothing: the columns {', '.join(cells)} say it all; remove it")
    return cells


def _whole(where: str, cell: str) -> int:
    try:
        return count(where, int(cell))
    except ValueError:
        raise InputError(where, f"{cell!r} must be a whole number") from None
