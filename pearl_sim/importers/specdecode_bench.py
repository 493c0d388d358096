"""SpecDecode-Bench's simulator files (arXiv 2601.11580): acceptance at every output position, so replay is exact.

One JSON object a line, one request each: `prompt_token_ids`, `generated_token_ids`, and for each proposer
`acc_PROPOSER.acc_len`: the tokens that a step started at that position emits, the target's own included.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from pearl_sim.errors import InputError
from pearl_sim.importers.lines import counts, records
from pearl_sim.importers.recording import Recording, provenance
from pearl_sim.trace import Trace


def read(file: Path, proposer: str, out: Path, run_limit: int | None = None) -> Trace:
    """Return the trace of `file` for one proposer ("eagle", "ngram"), to be saved at `out`.

    `run_limit` is how many tokens the recorder drafted at most; left out, it is inferred where runs pile up.

    InputError names the file and line of what is wrong.
    """
    recording = Recording(tokens=True)
    lengths: Counter[int] = Counter()
    cut = 0
    for where, record in records(file):
        prompt, text = counts(where, record, "prompt_token_ids"), counts(where, record, "generated_token_ids")
        emitted = counts(f"{where}: acc_{proposer}", _proposed(record, proposer, where), "acc_len")
        if 0 in emitted:
            raise InputError(f"{where}: acc_{proposer}.acc_len", "0 is not possible; a step emits 1 token or more")
        length = min(len(text), len(emitted))
        if length == 0:
            raise InputError(where, "the request has no output positions")
        cut += max(len(text), len(emitted)) - length
        runs = np.array(emitted[:length], np.int64) - 1
        name = str(record.get("id", where.rpartition(" ")[2]))
        recording.add(where, name, file.stem, len(prompt), runs, text[:length])
        lengths.update(runs.tolist())
    if not recording.requests:
        raise InputError(file, "has no requests")
    limit = _pile_up(lengths) if run_limit is None else run_limit
    if limit and max(lengths) > limit:
        raise InputError(file, f"has a run of {max(lengths)}, over --run-limit {limit}; give the recorder's real limit")
    notes = ["run is acc_len - 1; tokens drafted, top-2 margins, step times and finish reasons were not recorded"]
    if cut:
        notes.append(f"text and acceptance differ in length for some requests; {cut} trailing positions were left out")
    if limit and run_limit is None:
        notes.append(f"run_limit is inferred: runs of {limit}, the longest, are more frequent than runs of {limit - 1}")
    options = {"proposer": proposer, "run_limit": run_limit}
    return recording.trace(out, provenance("specdecode-bench", [file], options, out, limit, notes))


def _proposed(record: dict[str, Any], proposer: str, where: str) -> dict[str, Any]:
    found = record.get(f"acc_{proposer}")
    if isinstance(found, dict):
        return found
    known = sorted(key.removeprefix("acc_") for key in record if key.startswith("acc_"))
    raise InputError(where, f"has no acc_{proposer}; proposers recorded here: {', '.join(known) or 'none'}")


def _pile_up(lengths: Counter[int]) -> int | None:
    """Return the longest run if it is more frequent than the next shorter one, as only a recorder's limit makes it."""
    longest = max(lengths)
    return longest if longest and lengths[longest] >= 10 and lengths[longest] > lengths[longest - 1] else None
