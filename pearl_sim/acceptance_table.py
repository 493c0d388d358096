"""The answer of `pearl-sim acceptance`: what a trace, or counts, say about acceptance, as data and as tables."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from rich.console import RenderableType
from rich.table import Table

from pearl_sim import counts
from pearl_sim.dependence import Dependence, dependence
from pearl_sim.errors import InputError
from pearl_sim.fit import FittedLaw, fit_laws
from pearl_sim.metrics import Interval, ratio
from pearl_sim.survival import Chains, Checks, Depth, chains_of, checks_of, estimate
from pearl_sim.trace import load

Answer: TypeAlias = dict[str, Any]

SHOWN = 12
"""Depths in the table; JSON has them all."""
OPEN_END = 0.01
"""Share of chains that may outlive the record before the tokens between corrections are only a lower bound."""


def compute(path: Path) -> Answer:
    """Return everything that is known about acceptance in a directory, as JSON can hold it; NaN becomes null."""
    if counts.is_counts(path):
        found = counts.load(path)
        answer: Answer = {"trace": str(path), "source": found.provenance.source, "notes": list(found.provenance.notes)}
        if not found.alike:
            return answer | _of_totals(found.rounds)
        return answer | _of_checks(path, _counted(found.rounds), None, found.provenance.run_limit)
    trace = load(path)
    marks = trace.censored(None)
    requests = trace.workload(None, None)
    cut = marks or [np.zeros(len(request.runs), np.bool_) for request in requests]
    chains = [chains_of(request.runs, own) for request, own in zip(requests, cut, strict=True)]
    provenance = trace.provenance
    answer = {"trace": str(path), "source": provenance.source, "notes": list(provenance.notes)}
    return answer | _of_checks(path, checks_of(chains), chains, provenance.run_limit)


def render(answer: Answer) -> Iterator[RenderableType]:
    """Yield the tables and lines for a terminal."""
    yield f"{answer['trace']}: {answer['source']}"
    for note in answer["notes"]:
        yield f"  {note}"
    yield ""
    if "depths" not in answer:
        yield f"{answer['requests']} requests, {answer['rounds']} target forwards"
        yield f"tokens per target forward   {_shown(answer['tokens_per_forward'])}"
        yield f"accepted of the drafted     {_shown(answer['draft_acceptance'])}"
        return
    if answer["intervals"] == "chains":
        told = "one request, or none told apart: 95 % intervals as if all chains were independent"
    else:
        told = f"{answer['requests']} requests: 95 % intervals over them"
    yield f"{answer['checked']} drafts checked, {told}"
    table = Table("depth", "checked", "accepted", "acceptance there", "S(depth)", "tokens per target forward, sd")
    for row in answer["depths"][:SHOWN]:
        intervals = [_shown(row[key]) for key in ("conditional", "survival", "tokens_per_forward")]
        table.add_row(str(row["depth"]), str(row["checked"]), str(row["accepted"]), *intervals)
    yield table
    if len(answer["depths"]) > SHOWN:
        yield f"down to depth {len(answer['depths'])} in --json"
    at_least = ", at least: the record ends before the chains do" if answer["open_end"] else ""
    yield f"tokens between corrections  {_shown(answer['tokens_between_corrections'])}{at_least}"
    spread, memory = answer["dispersion"], answer["autocorrelation"]
    if spread["mean"] is not None:
        yield f"dispersion of requests      {spread['mean']:.2f} (i.i.d.: {spread['low']:.2f} to {spread['high']:.2f})"
    if memory["mean"] is not None:
        yield f"autocorrelation, lag 1      {_shown(memory)} (i.i.d.: 0)"
    yield ""
    table = Table("law", "parameters", "AIC, over the best", "p over depths", "p over requests", "S(k) off by", "")
    for law in answer["laws"]:
        ps = ["-" if law[key] is None else f"{law[key]:.3f}" for key in ("depth_p", "request_p")]
        untested = law["depth_p"] is None and law["request_p"] is None
        told = "rejected" if law["rejected"] else "not tested: too few" if untested else "fits"
        behind = law["aic"] - min(one["aic"] for one in answer["laws"])
        table.add_row(
            _named(law["law"]), str(law["parameters"]), f"{behind:.1f}", *ps, f"{law['survival_off']:.3f}", told
        )
    yield table
    best = answer["laws"][0]
    worth = (
        f"is the best, though rejected: S(k) is off by up to {best['survival_off']:.3f}"
        if best["rejected"]
        else "has the best AIC"
    )
    yield f"{best['law']['law']} {worth}.  In a scenario:"
    yield ""
    yield "\\[acceptance]"
    for key, value in best["law"].items():
        yield f"{key} = {_toml(value)}"


def _of_checks(path: Path, checks: Checks, chains: list[Chains] | None, run_limit: int | None) -> Answer:
    """Return the part of the answer that stands on checks by depth."""
    if not checks.checked.any():
        raise InputError(path, "no draft was checked, so nothing is known about acceptance")
    depths = estimate(checks)
    told: Dependence = dependence(checks, chains)
    whole = chains is not None and not any(own.censored[:-1].any() for own in chains)
    return {
        "requests": len(checks.checked),
        "checked": int(checks.checked.sum()),
        "intervals": "requests" if len(checks.checked) > 1 else "chains",
        "run_limit": run_limit,
        "depths": [_depth(one) for one in depths],
        "tokens_between_corrections": _interval(depths[-1].tokens_per_forward),
        "open_end": depths[-1].survival.mean > OPEN_END,
        "dispersion": _interval(told.dispersion),
        "autocorrelation": _interval(told.autocorrelation),
        "laws": [_law(one) for one in fit_laws(checks, whole)],
    }


def _of_totals(rounds: pl.DataFrame) -> Answer:
    """Return what sums can tell: means."""
    accepted, drafted, number = (rounds[name].to_list() for name in ("accepted", "drafted", "rounds"))
    tokens = [some + own for some, own in zip(accepted, number, strict=True)]
    return {
        "requests": len(number),
        "rounds": sum(number),
        "tokens_per_forward": _interval(ratio(tokens, number)),
        "draft_acceptance": _interval(ratio(accepted, drafted)),
    }


def _counted(rounds: pl.DataFrame) -> Checks:
    """Return checks by depth, a row a request: a round that stops short of its last draft has checked one more."""
    names = {name: row for row, name in enumerate(rounds["request"].unique(maintain_order=True))}
    deepest = max(int(rounds["drafted"].max() or 0), 1)  # type: ignore[arg-type]
    checked, accepted = np.zeros((2, len(names), deepest), np.int64)
    for name, drafted, right, number in rounds.iter_rows():
        accepted[names[name], :right] += number
        checked[names[name], : min(right + 1, drafted)] += number
    return Checks(checked, accepted)


def _depth(found: Depth) -> Answer:
    return {key: _interval(value) if isinstance(value, Interval) else value for key, value in found._asdict().items()}


def _law(found: FittedLaw) -> Answer:
    told = found._asdict() | {"law": found.law.model_dump(mode="json")}
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in told.items()}


def _interval(found: Interval) -> dict[str, float | None]:
    return {key: None if math.isnan(value) else value for key, value in found._asdict().items()}


def _shown(interval: dict[str, float | None]) -> str:
    if interval["mean"] is None:
        return "-"
    if interval["low"] is None or interval["high"] is None:
        return f"{interval['mean']:.3f}"
    return f"{interval['mean']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})"


def _named(law: dict[str, Any]) -> str:
    values = ", ".join(f"{key} {_toml(value)}" for key, value in law.items() if key != "law")
    return f"{law['law']}: {values}"


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"\\[{', '.join(_toml(one) for one in value)}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}"
