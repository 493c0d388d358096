"""The page that says how well simulation told the time: a measurement in Markdown, and its picture."""

from pathlib import Path

import polars as pl

from pearl_sim import compare_figure, profile_summary
from pearl_sim.compare import PARTS, Verdict, verdict
from pearl_sim.efficiency import efficiency
from pearl_sim.fidelity import KEPT, PROFILED, Measurement
from pearl_sim.trace import Provenance

PAGE = """\
# How well simulation tells the time

Written by `nox -s fidelity`, which measures it all anew on the machine at hand.

{about}

The engine decodes every prompt under every policy and gamma; between prompts, one pass of a profile times steps of
every size (`pearl-sim profile`). The simulator is then given the acceptance that the trace recorded and the times
that the profile did, and predicts each run. No run is used to predict itself. The second line is the harder test: the
profile holds only AR, SD and PEARL at gamma {kept}, and predicted are the runs at other gammas and the ablations.

| | median error | worst error | rounds |
|---|---|---|---|
{outcomes}

*Error* is simulated over real tokens/s, less 1. *Rounds* says whether every round of every run did exactly what the
simulator's did: tokens drafted, positions scored, drafts accepted.
{doubts}
![Error of simulated speed by policy and gamma]({picture})

## Every run

*All*: everything profiled. *Part*: only AR, SD and PEARL at gamma {kept}. Errors in %, with the
95 % bootstrap interval over requests.

| policy | gamma | real tokens/s | simulated, all | error, all | 95 % | error, part | a round, median | p99 round |
|---|---|---|---|---|---|---|---|---|
{runs}

## Where the errors lie

Simulated less real time of each part, in % of all real time; everything profiled.

| policy | gamma | {part_names} |
|---|---|---|---|---|---|---|
{parts}

## What rounds take beyond their models

*Wall* is real time over the sum of the slower model's time in every round, prefill left out; hand-over is the rest,
in microseconds a round. *Late*: the draft starts after the target, since its order has to reach it first. *After*: from
the end of the slower model to the start of the next round, which is the answer's way back through the pipe, the
verdict, and the order for the next chain. Sampling and the cache's rollback are part of the models' own steps.

| run | rounds | wall | hand-over, us | late | after |
|---|---|---|---|---|---|
{efficiency}

## What the simulator knows of time

From a profile it takes, for each size of step, 256 equally likely durations in each of four circumstances: alone or
beside the other model, after working in the round before or after a rest (a draft that waited finds its caches cold). A
round lasts as long as the slower of two *random* times, which is longer than the slower mean. Also how times grow with
context, the mean hand-over of each kind of round, and prefill. Sizes between those profiled are interpolated.
It knows nothing of what makes one minute of a shared machine slower than the next; the two sides share that only
because they are measured in turns.
"""


def write(measured: Measurement, page: Path) -> None:
    """Write the page, and its picture beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    picture = page.with_suffix(".png")
    compare_figure.save(measured.found, "Simulated against real speed", picture)
    page.write_text(text(measured, picture.name), encoding="utf-8")


def text(measured: Measurement, picture: str) -> str:
    """Return the page."""
    whole, part = (of_cost for _, of_cost in measured.found.group_by("cost", maintain_order=True))
    known = pl.col("policy").is_in(PROFILED) & pl.col("gamma").is_in([0, *KEPT])
    others = part.filter(~known)
    kept = " and ".join(map(str, KEPT))
    doubts = profile_summary.doubts(measured.profile.steps)
    partial = {(row["policy"], row["gamma"]): row["error"] for row in part.iter_rows(named=True)}
    rows = list(whole.iter_rows(named=True))
    outcomes = {
        f"everything profiled: {len(whole)} runs": verdict(whole),
        f"{len(others)} runs left out of the profile": verdict(others),
    }
    return PAGE.format(
        about=_about(measured.runs.provenance, len(measured.runs.requests), len(measured.runs.tokens)),
        outcomes="\n".join(_outcome(name, outcome) for name, outcome in outcomes.items()),
        doubts="".join(f"\n**Warning: {doubt}.**\n" for doubt in doubts),
        picture=picture,
        kept=kept,
        runs="\n".join(_run(row, partial[row["policy"], row["gamma"]]) for row in rows),
        part_names=" | ".join(PARTS),
        parts="\n".join(_row([row["policy"], row["gamma"] or "", *(_percent(row[p]) for p in PARTS)]) for row in rows),
        efficiency="\n".join(_efficiency(row) for row in efficiency(measured.runs.steps).iter_rows(named=True)),
    )


def _about(made: Provenance, requests: int, tokens: int) -> str:
    models = " and ".join(model.id for model in (made.target, made.draft) if model)
    software = ", ".join(f"{name} {version}" for name, version in made.software.items())
    settings = made.sampling
    sampling = f"{settings['mode']} sampling" + (
        f", temperature {settings['temperature']}" if len(settings) > 1 else ""
    )
    threads = f"{made.threads} thread{'' if made.threads == 1 else 's'} a model"
    return (
        f"**{made.created}, {made.device}, {threads}.** {software}.\n"
        f"{models}, {made.execution}, {sampling}; {requests} prompts, {tokens} output tokens in each run."
    )


def _outcome(name: str, outcome: Verdict) -> str:
    equal = "all equal" if outcome.rounds_equal else "not all equal"
    return _row([name, f"**{100 * outcome.median_error:.1f} %**", f"{100 * outcome.worst_error:.1f} %", equal])


def _run(row: dict[str, object], part: float | None) -> str:
    gamma, error = row["gamma"], (row["error_low"], row["error_high"])
    return _row(
        [
            row["policy"],
            gamma or "",
            *(_speed(row[side]) for side in ("real_tokens_per_s", "simulated_tokens_per_s")),
            _percent(row["error"]),
            " to ".join(map(_percent, error)),
            _percent(part) + ("" if row["policy"] in PROFILED and gamma in (0, *KEPT) else " *left out*"),
            _percent(row["round_error_p50"]),
            _percent(row["tail_error"]),
        ]
    )


def _efficiency(row: dict[str, object]) -> str:
    times = (f"{row[name]:.0f}" for name in ("hand_over_us", "late_us", "after_us"))
    return _row([row["source"], row["rounds"], f"{row['wall_over_critical']:.3f}", *times])


def _row(cells: list[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _speed(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else "-"


def _percent(value: object) -> str:
    return f"{100 * value:+.1f}" if isinstance(value, float) else "-"
