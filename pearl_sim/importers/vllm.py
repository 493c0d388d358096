"""What a vLLM server says about speculation: its Prometheus counters, or its responses with acceptance in them.

Prometheus text of /metrics, one scrape, or one before and one after (vllm/v1/spec_decode/metrics.py):
`vllm:spec_decode_num_drafts_total` (rounds), `..._num_draft_tokens_total`, `..._num_accepted_tokens_total` and
`..._num_accepted_tokens_per_pos_total{position="0", ...}`, each for every engine.  If every round drafted the same
number of tokens, accepted tokens by position say how many rounds had how many accepted.  If not, they do not.

Responses, one JSON object a line, of a server with --per-request-spec-decode-metrics
(docs/features/speculative_decoding/acceptance_metrics.md): `metrics.speculative_decoding` has
`acceptance_histogram_by_draft_length`, and at level `detailed` every round in order, `per_step_drafted` and
`per_step_accepted`: then a trace can be made.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from pearl_sim.counts import COUNTS, Counts
from pearl_sim.errors import InputError
from pearl_sim.importers.lines import count, counts, numbered, records
from pearl_sim.importers.recording import FIRST, INSIDE, Recording, Rounds, provenance
from pearl_sim.trace import Trace

SAMPLE = re.compile(
    r"vllm:spec_decode_num_(?P<name>drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)(?:_total)?"
    r"(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+\S+)?\s*"
)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
UNEVEN = 0.01
"""Share of a draft's places that may have stayed empty; more, and counters by position no longer tell acceptance."""

Series = Counter[tuple[str, int]]
"""Counters by name and position (0 where there is none), summed over engines."""


def read(files: Sequence[Path], out: Path) -> Trace | Counts:
    """Return what the files tell, to be saved at `out`: a trace if every round is there, else counts.

    InputError names the file and line of what is wrong.
    """
    if len(files) > 2:
        raise InputError(files[2], "is one too many; give metrics before and after, or one file")
    _, first = next(numbered(files[0]))
    if first.lstrip().startswith("{"):
        if len(files) > 1:
            raise InputError(files[1], "is one too many; give one file of responses")
        return _responses(files[0], out)
    return _metrics(files, out)


def _metrics(files: Sequence[Path], out: Path) -> Counts:
    *before, (model, after) = [_scrape(file) for file in files]
    notes = ["only sums over all requests were recorded: no positions, no order, no request"]
    series = Counter(after)
    if before:
        earlier_model, earlier = before[0]
        if earlier_model != model:
            raise InputError(files[1], f"is about model {model!r}, {files[0].name} about {earlier_model!r}")
        series.subtract(earlier)
        for (name, _), value in series.items():
            if value < 0:
                raise InputError(files[1], f"{name} went down since {files[0].name}: other order, or a restart between")
    else:
        notes.append("one scrape only: everything since the server started")
    gamma = 1 + max(position for name, position in series if name == "accepted_tokens_per_pos")
    by_depth = [series["drafts", 0], *(series["accepted_tokens_per_pos", depth] for depth in range(gamma))]
    _consistent(files[-1], series, by_depth, gamma, notes)
    rounds = [shallower - deeper for shallower, deeper in pairwise([*by_depth, 0])]
    rows = [("all", gamma, accepted, number) for accepted, number in enumerate(rounds) if number]
    if not rows:
        raise InputError(files[-1], "counts no rounds of speculative decoding" + (" in between" if before else ""))
    told = provenance("vllm", files, {}, out, gamma, notes)
    return Counts(out, told, pl.DataFrame(rows, COUNTS, orient="row"), alike=True)


def _consistent(file: Path, series: Series, by_depth: list[int], gamma: int, notes: list[str]) -> None:
    """Raise InputError if the counters contradict each other, or leave open what was drafted; note slight flaws."""
    for depth, (shallower, deeper) in enumerate(pairwise(by_depth)):
        if deeper > shallower:
            was = "rounds" if depth == 0 else f"tokens accepted at position {depth - 1}"
            raise InputError(file, f"{deeper} tokens accepted at position {depth}, more than {shallower} {was}")
    drafts, accepted, drafted = (series[name, 0] for name in ("drafts", "accepted_tokens", "draft_tokens"))
    if accepted > drafted:
        raise InputError(file, f"accepted_tokens = {accepted} is more than draft_tokens = {drafted}")
    off = abs(sum(by_depth[1:]) - accepted)
    if off > UNEVEN * max(accepted, 1):
        raise InputError(
            file, f"tokens accepted by position add up to {sum(by_depth[1:])}, not accepted_tokens = {accepted}"
        )
    if off:
        notes.append(f"scraped while rounds ended: accepted tokens by position and in all differ by {off}")
    empty = drafts * gamma - drafted
    if empty > UNEVEN * drafts * gamma:
        raise InputError(
            file,
            f"rounds drafted {drafted / drafts:.2f} tokens of {gamma} on average, so these counters do not tell "
            "how many were checked at each position; record responses with --per-request-spec-decode-metrics instead",
        )
    if empty > 0:
        notes.append(
            f"{empty} of {drafts * gamma} places in drafts stayed empty; they count as rejected: a lower bound"
        )


def _scrape(file: Path) -> tuple[str, Series]:
    """Return the model's name and its counters."""
    series: Series = Counter()
    models, seen = set(), set()
    for where, line in numbered(file):
        match = SAMPLE.fullmatch(line.strip())
        if match is None:
            if line.startswith("vllm:spec_decode_num_") and "_created" not in line:
                raise InputError(where, f"is not a sample of a spec_decode counter: {line[:60]!r}")
            continue
        labels = dict(LABEL.findall(match["labels"] or ""))
        models.add(labels.get("model_name", ""))
        key = (match["name"], match["labels"])
        if key in seen:
            raise InputError(where, f"{match['name']} is there twice with the same labels; one scrape a file")
        seen.add(key)
        position = labels.get("position", "")
        if (match["name"] == "accepted_tokens_per_pos") != position.isdecimal():
            raise InputError(where, f"position = {position!r} is not what {match['name']} has")
        series[match["name"], int(position or 0)] += _whole(f"{where}: {match['name']}", match["value"])
    names = {name for name, _ in series}
    for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"):
        if name not in names:
            raise InputError(
                file, f"has no vllm:spec_decode_num_{name}_total; are these metrics of a speculating server?"
            )
    if len(models) > 1:
        raise InputError(file, f"is about several models ({', '.join(sorted(models))}); keep the lines of one")
    positions = sorted(position for name, position in series if name == "accepted_tokens_per_pos")
    if positions != list(range(len(positions))):
        raise InputError(file, f"has accepted tokens at the positions {positions}; some are missing")
    return models.pop(), series


def _whole(where: str, text: str) -> int:
    try:
        value = float(text)
        whole = int(value)
    except (ValueError, OverflowError):
        raise InputError(where, f"{text!r} must be a whole number") from None
    if whole != value:
        raise InputError(where, f"{text!r} must be a whole number")
    return count(where, whole)


def _responses(file: Path, out: Path) -> Trace | Counts:
    recording, rows, silent, longest, in_order = Recording(censored=True), [], 0, 1, True
    for where, record in records(file):
        told = _told(where, record)
        if told is None:
            silent += 1
            continue
        name = str(record.get("id", where.rpartition(" ")[2]))
        place = f"{where}: metrics.speculative_decoding"
        histogram = _histogram(place, told)
        longest = max(longest, *(drafted for drafted, _ in histogram), 1)
        rows += [(name, *key, number) for key, number in histogram.items()]
        if "per_step_accepted" not in told:
            in_order = False
        if in_order:
            rounds = _steps(place, told)
            usage = record.get("usage") or {}
            prompt = count(f"{where}: usage.prompt_tokens", usage.get("prompt_tokens", 0))
            runs, censored = rounds.runs(cut_short=True)
            recording.add(where, name, file.stem, prompt, runs, censored=censored)
    if not rows:
        raise InputError(
            file,
            "has no round in metrics.speculative_decoding; start the server with --per-request-spec-decode-metrics",
        )
    notes = [f"{silent} responses without metrics.speculative_decoding were left out"] if silent else []
    if in_order:
        notes += [FIRST, INSIDE, "the last round of a request may have been cut by its end, so its run is censored"]
        notes.append("steps without drafts were not recorded, so texts may have been longer; nor were tokens and times")
        return recording.trace(out, provenance("vllm", [file], {}, out, longest, notes))
    notes.append("only how many rounds accepted how many was recorded: no positions, no order")
    told_where = provenance("vllm", [file], {}, out, longest, notes)
    return Counts(out, told_where, pl.DataFrame(rows, COUNTS, orient="row"), alike=True)


def _told(where: str, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a response says about speculation, or None."""
    if "choices" not in record:
        raise InputError(where, "has no choices; is it a response?")
    metrics = record.get("metrics")
    told = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    return told if isinstance(told, dict) else None


def _histogram(where: str, told: dict[str, Any]) -> dict[tuple[int, int], int]:
    """Return how many rounds had so many tokens (drafted, accepted)."""
    if "per_step_accepted" in told:
        rounds = _steps(where, told)
        return dict(Counter(zip(rounds.drafted, rounds.accepted, strict=True)))
    by_length = told.get("acceptance_histogram_by_draft_length")
    if by_length is None:
        # Older servers tell one histogram; it is enough if every draft had its full length.
        flat, full = (
            counts(where, told, "acceptance_histogram"),
            count(f"{where}: num_spec_tokens", told.get("num_spec_tokens")),
        )
        if sum(flat) * full != count(f"{where}: num_draft_tokens", told.get("num_draft_tokens")):
            raise InputError(
                f"{where}: acceptance_histogram", "does not tell which drafts were short; record more levels"
            )
        by_length = {str(full): flat}
    if not isinstance(by_length, dict) or not all(key.isdecimal() for key in by_length):
        raise InputError(f"{where}: acceptance_histogram_by_draft_length", "must map draft lengths to lists")
    found: dict[tuple[int, int], int] = {}
    for key in by_length:
        buckets = counts(f"{where}: acceptance_histogram_by_draft_length", by_length, key)
        if len(buckets) > int(key) + 1 and any(buckets[int(key) + 1 :]):
            raise InputError(
                f"{where}: acceptance_histogram_by_draft_length", f"accepts more than {key} drafted tokens"
            )
        found |= {(int(key), accepted): number for accepted, number in enumerate(buckets) if number}
    return found


def _steps(where: str, told: dict[str, Any]) -> Rounds:
    """Return the rounds of a request, in order."""
    drafted, accepted = counts(where, told, "per_step_drafted"), counts(where, told, "per_step_accepted")
    if len(drafted) != len(accepted):
        raise InputError(where, f"per_step_drafted has {len(drafted)} rounds, per_step_accepted {len(accepted)}")
    for number, (most, some) in enumerate(zip(drafted, accepted, strict=True)):
        if some > most:
            raise InputError(f"{where}: per_step_accepted[{number}]", f"{some} is more than was drafted, {most}")
    return Rounds(drafted, accepted)
