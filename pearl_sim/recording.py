"""Recording piece by piece: each finished piece is kept on disk, so that an interrupted recording goes on where it was.

A piece is a request of a capture or a replay, or a pass of a profile: rows for the tables of a trace.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import polars as pl

from pearl_sim.drivers.real import Emitted
from pearl_sim.errors import InputError
from pearl_sim.trace import REQUESTS, STEPS, TOKENS

Row: TypeAlias = tuple[object, ...]

SCHEMAS = {"requests": REQUESTS, "tokens": TOKENS, "steps": STEPS}


class Piece(NamedTuple):
    """Rows of requests.parquet, tokens.parquet and steps.parquet, and how many runs left replay at a near tie."""

    requests: list[Row]
    tokens: list[Row]
    steps: list[Row]
    near_ties: int = 0


class Joined(NamedTuple):
    """All pieces of a recording, joined."""

    requests: pl.DataFrame
    tokens: pl.DataFrame
    steps: pl.DataFrame
    near_ties: int


def begin(out: Path, plan: dict[str, object], resume: bool) -> None:
    """Make room for the pieces of a recording that is to be saved at `out`; `plan` says all that they depend on.

    InputError if `out` exists, or an interrupted recording does and `resume` is false or its plan differs.
    """
    if out.exists():
        raise InputError(out, "exists already; choose another name or remove it")
    hold_to_plan(part_of(out), plan, resume)


def hold_to_plan(part: Path, plan: dict[str, object], resume: bool) -> None:
    """Make the directory `part` for what this plan makes; InputError as `begin`."""
    file, planned = part / "plan.json", json.dumps(plan)
    if not file.exists():
        part.mkdir(parents=True, exist_ok=True)
        file.write_text(planned, encoding="utf-8")
    elif not resume:
        raise InputError(part, "holds an interrupted recording; go on with --resume, or remove it")
    elif file.read_text(encoding="utf-8") != planned:
        raise InputError(part, "holds an interrupted recording with other settings; remove it to start anew")


def in_pieces(out: Path, count: int, record: Callable[[int], Piece], on_piece: Callable[[int, int], object]) -> Joined:
    """Record `count` pieces and return them joined; those that an interrupted recording left are not made again.

    After `begin`; once the result is saved, `discard` the pieces.  `on_piece` is told each one's number and output
    tokens.
    """
    part = part_of(out)
    found = []
    for number in range(count):
        directory = part / f"{number:05}"
        if not (directory / "done").exists():
            _keep(record(number), directory)
        tables = [pl.read_parquet(directory / f"{table}.parquet") for table in SCHEMAS]
        found.append((tables, int((directory / "done").read_text())))
        on_piece(number, len(tables[1]))
    requests, tokens, steps = (pl.concat(tables) for tables in zip(*(tables for tables, _ in found), strict=True))
    return Joined(requests, tokens, steps, sum(near_ties for _, near_ties in found))


def discard(out: Path) -> None:
    """Remove the pieces of the recording that was saved at `out`."""
    shutil.rmtree(part_of(out))


def step_rows(emitted: Sequence[Emitted], source: str, request: str, prompt_tokens: int, batch: int = 1) -> list[Row]:
    """Return rows of steps.parquet for one run, a row a model and round; context 0 marks prefill."""
    rows: list[Row] = []
    for number, (step, _, draft_start, score_start) in enumerate(emitted):
        verified, pending = step.frontier
        overlapped = step.draft_ns > 0 and step.score_ns > 0
        for role, start, ns, size, context in (
            ("draft", draft_start, step.draft_ns, step.round.draft, prompt_tokens + verified + pending),
            ("target", score_start, step.score_ns, step.round.score, prompt_tokens + verified),
        ):
            if ns:
                tokens, before = (size, context) if number else (prompt_tokens, 0)
                rows.append((source, request, number, role, start, start + ns, tokens, before, batch, overlapped))
    return rows


def part_of(out: Path) -> Path:
    """Return the directory that holds the pieces of a recording to be saved at `out`."""
    return out.parent / f".{out.name}.part"


def _keep(piece: Piece, directory: Path) -> None:
    """Write a piece; last "done", which says that it is whole, with its near ties."""
    directory.mkdir(parents=True, exist_ok=True)
    for table, schema in SCHEMAS.items():
        pl.DataFrame(getattr(piece, table), schema, orient="row").write_parquet(directory / f"{table}.parquet")
    (directory / "done").write_text(str(piece.near_ties))
