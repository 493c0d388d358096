"""SpecDecode-Bench's simulator files (arXiv 2601.11580): acceptance at every output position, so replay is exact.

One JSON object a line, one request each: `prompt_token_ids`, `generated_token_ids`, and for each proposer
`acc_PROPOSER.acc_len`: the tokens that a step started at that position emits, the target's own included.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl

from pearl_sim.errors import InputError
from pearl_sim.trace import REQUESTS, STEPS, TOKENS, Provenance, Trace


def read(file: Path, proposer: str, out: Path, run_limit: int | None = None) -> Trace:
    """Return the trace of `file` for one proposer ("eagle", "ngram"), to be saved at `out`.

    `run_limit` is how many tokens the recorder drafted at most; left out, it is inferred where runs pile up.

    InputError names the file and line of what is wrong.
    """
    requests: list[tuple[str, str, int, int, None]] = []
    positions: list[tuple[str, int, int, int, None, None, None]] = []
    cut = 0
    for line, record in _records(file):
        where = f"{file}: line {line}"
        name, prompt = str(record.get("id", line)), _ints(record, "prompt_token_ids", where)
        text = _ints(record, "generated_token_ids", where)
        emitted = _ints(_proposed(record, proposer, where), "acc_len", f"{where}: acc_{proposer}")
        wrong = next((n for n in emitted if n < 1), None)
        if wrong is not None:
            raise InputError(
                f"{where}: acc_{proposer}.acc_len", f"{wrong} is not possible; a step emits 1 token or more"
            )
        length = min(len(text), len(emitted))
        if length == 0:
            raise InputError(where, "the request has no output positions")
        cut += max(len(text), len(emitted)) - length
        requests.append((name, file.stem, len(prompt), length, None))
        positions += [(name, i, text[i], emitted[i] - 1, None, None, None) for i in range(length)]
    if not requests:
        raise InputError(file, "has no requests")
    runs = Counter(row[3] for row in positions)
    limit = _pile_up(runs) if run_limit is None else run_limit
    if limit and max(runs) > limit:
        raise InputError(file, f"has a run of {max(runs)}, over --run-limit {limit}; give the recorder's real limit")
    notes = ["run is acc_len - 1; tokens drafted, top-2 margins, step times and finish reasons were not recorded"]
    if cut:
        notes.append(f"text and acceptance differ in length for some requests; {cut} trailing positions were left out")
    if limit and run_limit is None:
        notes.append(f"run_limit is inferred: runs of {limit}, the longest, are more frequent than runs of {limit - 1}")
    provenance = Provenance(
        source=f"imported from specdecode-bench: {file.name} (sha256 {_sha256(file)}), proposer {proposer}",
        created=date.today().isoformat(),
        command=f"pearl-sim import specdecode-bench {file.name} --proposer {proposer} --out {out.name}",
        run_limit=limit,
        notes=tuple(notes),
    )
    return Trace(
        out,
        provenance,
        pl.DataFrame(requests, REQUESTS, orient="row"),
        pl.DataFrame(positions, TOKENS, orient="row"),
        pl.DataFrame(schema=STEPS),
    )


def _records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for every line that is not blank."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InputError(f"{file}: line {number}", f"is not JSON: {error}") from None
                if not isinstance(record, dict):
                    raise InputError(f"{file}: line {number}", "must be a JSON object")
                yield number, record
    except FileNotFoundError:
        raise InputError(file, "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(file, f"cannot be read: {error}") from None


def _proposed(record: dict[str, Any], proposer: str, where: str) -> dict[str, Any]:
    found = record.get(f"acc_{proposer}")
    if isinstance(found, dict):
        return found
    known = sorted(key.removeprefix("acc_") for key in record if key.startswith("acc_"))
    raise InputError(where, f"has no acc_{proposer}; proposers recorded here: {', '.join(known) or 'none'}")


def _ints(record: dict[str, Any], key: str, where: str) -> list[int]:
    values = record.get(key)
    if not isinstance(values, list) or any(type(value) is not int or abs(value) >= 2**63 for value in values):
        raise InputError(f"{where}: {key}", "must be a list of whole numbers of 64 bits")
    return values


def _pile_up(counts: Counter[int]) -> int | None:
    """Return the longest run if it is more frequent than the next shorter one, as only a recorder's limit makes it."""
    longest = max(counts)
    return longest if longest and counts[longest] >= 10 and counts[longest] > counts[longest - 1] else None


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
