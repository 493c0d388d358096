"""What llama.cpp says about speculation: logs of its speculative examples and its server, or the server's responses.

Seen in ggml-org/llama.cpp: examples/speculative/speculative.cpp, examples/speculative-simple/speculative-simple.cpp,
tools/server/server-context.cpp, server-task.cpp.

log, a line a round (debug verbosity)   accepted A/D draft tokens, new n_tokens = N     a trace can be made
log of the server, a request            eval time = T ms / N tokens (...); then
                                        draft acceptance = R ( A accepted / D generated)   sums only
log of the examples                     n_predict = N, n_drafted = D, n_accept  = A        sums only
response, one JSON object a line        timings: predicted_n, draft_n, draft_n_accepted    sums only

Sums tell how many tokens a target forward yields, since each forward adds one token to the accepted ones; they do not
tell S(k).  Where the target's cache cannot be cut, llama.cpp scores accepted tokens a second time, as a draft that
holds the target's own token; its counts then mean something else, and such a log is refused.
"""

import re
from pathlib import Path
from typing import Any

import polars as pl

from pearl_sim.counts import COUNTS, Counts
from pearl_sim.errors import InputError
from pearl_sim.importers.lines import count, numbered, records
from pearl_sim.importers.recording import FIRST, INSIDE, Recording, Rounds, provenance
from pearl_sim.trace import Trace

ROUND = re.compile(r"accepted\s+(-?\d+)/\s*(-?\d+) draft tokens, (?:new n_tokens|the last target token)")
TASK = re.compile(r"\|\s*task\s+(\d+)\s*\|")
EVAL = re.compile(r"(?<!prompt )eval time =\s*([\d.]+) ms /\s*(\d+) tokens")
DECODED = re.compile(r"decoded\s+\d+ tokens in\s+([\d.]+) seconds")
REQUEST = re.compile(r"draft acceptance(?: rate)? =\s*[\d.]+ \(\s*(\d+) accepted /\s*(\d+) generated\)")
EXAMPLE = re.compile(r"\b(n_predict|n_drafted|n_accept)\s*=\s*(-?\d+)\s*$")
TWICE = re.compile(r"restor\w+ (?:speculative )?checkpoint|partial acceptance:")

SUMS = "only sums over the rounds of a request were recorded: they tell the mean, not S(k)"
ONE_EACH = "rounds are inferred: tokens written, less one of prefill and the accepted drafts"

Row = tuple[str, int, int, int]


def read(file: Path, out: Path) -> Trace | Counts:
    """Return what the file tells, to be saved at `out`: a trace if every round is there, else counts.

    InputError names the file and line of what is wrong.
    """
    _, first = next(numbered(file))
    return _responses(file, out) if first.lstrip().startswith("{") else _log(file, out)


def _log(file: Path, out: Path) -> Trace | Counts:
    drafted: dict[str, list[int]] = {}
    accepted: dict[str, list[int]] = {}
    rows: list[Row] = []
    sums: dict[str, int] = {}
    task, written, ms = file.stem, None, 0.0
    for where, line in numbered(file):
        if TWICE.search(line):
            raise InputError(
                where, "this run scored accepted tokens twice (checkpoints), so its counts are not acceptance"
            )
        task = f"task {found[1]}" if (found := TASK.search(line)) else task
        if found := ROUND.search(line):
            some, most = count(where, int(found[1])), count(where, int(found[2]))
            _no_more(where, some, most)
            drafted.setdefault(task, []).append(most)
            accepted.setdefault(task, []).append(some)
        elif found := EVAL.search(line):
            written, ms = int(found[2]), ms + float(found[1])
        elif found := DECODED.search(line):
            ms += 1000 * float(found[1])
        elif found := REQUEST.search(line):
            if written is None:
                raise InputError(where, "no eval time with a number of tokens stands before it, so rounds are unknown")
            rows.append(_row(where, f"{task}, {len(rows)}", written, int(found[2]), int(found[1])))
            written = None
        elif found := EXAMPLE.search(line):
            sums[found[1]] = count(f"{where}: {found[1]}", int(found[2]))
            if len(sums) == len(("n_predict", "n_drafted", "n_accept")):
                rows.append(_row(where, f"run {len(rows)}", sums["n_predict"], sums["n_drafted"], sums["n_accept"]))
                sums = {}
    if drafted:
        return _trace(file, out, drafted, accepted)
    if sums:
        raise InputError(file, f"ends before {', '.join({'n_predict', 'n_drafted', 'n_accept'} - sums.keys())}")
    return _counts(file, out, rows, ms)


def _trace(file: Path, out: Path, drafted: dict[str, list[int]], accepted: dict[str, list[int]]) -> Trace:
    recording = Recording(censored=True)
    for name, most in drafted.items():
        runs, censored = Rounds(most, accepted[name]).runs(cut_short=True)
        recording.add(str(file), name, file.stem, 0, runs, censored=censored)
    notes = [FIRST, INSIDE, "the last round of a request may have been cut by its end, so its run is censored"]
    notes.append("steps without drafts were not recorded, so texts may have been longer; prompt lengths stand as 0")
    longest = max(max(most) for most in drafted.values())
    return recording.trace(out, provenance("llama-cpp", [file], {}, out, max(longest, 1), notes))


def _responses(file: Path, out: Path) -> Counts:
    rows: list[Row] = []
    ms = 0.0
    for where, record in records(file):
        timings: Any = record.get("timings")
        if not isinstance(timings, dict):
            raise InputError(f"{where}: timings", "is missing; is it a response of llama-server?")
        if "draft_n" not in timings:
            continue
        written, drafted, accepted = (
            count(f"{where}: timings.{key}", timings.get(key)) for key in ("predicted_n", "draft_n", "draft_n_accepted")
        )
        name = str(record.get("id", where.rpartition(" ")[2]))
        rows.append(_row(f"{where}: timings", name, written, drafted, accepted))
        spent = timings.get("predicted_ms")
        ms += spent if isinstance(spent, int | float) else 0.0
    return _counts(file, out, rows, ms)


def _counts(file: Path, out: Path, rows: list[Row], ms: float) -> Counts:
    rounds = sum(row[3] for row in rows)
    if rounds == 0:
        raise InputError(file, "tells of no drafted tokens; was the draft switched on?")
    notes = [SUMS, ONE_EACH]
    if ms:
        notes.append(f"decoding took {ms / rounds:.3f} ms a round on average, the draft's part included")
    told = provenance("llama-cpp", [file], {}, out, None, notes)
    return Counts(out, told, pl.DataFrame(rows, COUNTS, orient="row"), alike=False)


def _row(where: str, name: str, written: int, drafted: int, accepted: int) -> Row:
    """Return the counts of a request that wrote so many tokens."""
    _no_more(where, accepted, drafted)
    if written - 1 < accepted:
        raise InputError(where, f"{accepted} accepted tokens cannot be in a text of {written}")
    return name, drafted, accepted, max(written - 1 - accepted, 1)


def _no_more(where: str, accepted: int, drafted: int) -> None:
    if accepted > drafted:
        raise InputError(where, f"{accepted} accepted is more than was drafted, {drafted}")
