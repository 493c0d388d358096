"""The answer first: for each run the best policy and gamma, how much faster it is, and how sure that is."""

import math
from collections.abc import Sequence

import polars as pl

from pearl_sim.metrics import Interval
from pearl_sim.report.section import Section, Table, Text, percent
from pearl_sim.report.study import Study
from pearl_sim.run import Run


def section(runs: Sequence[Run], studies: Sequence[Study]) -> Section:
    """Return a sentence for each place studied, and a line for each run."""
    body: list[Text | Table] = []
    for study in studies:
        body += [Text(answer(study)), Text(f"{study.title}. {rests_on(study.run)}.")]
    rows = [line(run) for run in runs]
    headings = ("run", "settings", "fastest policy", "its speed-up over AR")
    body.append(Table(headings, rows))
    return Section(
        "answer",
        "The answer",
        "Which policy is fastest at which gamma, and by how much; intervals are 95 % over requests, every policy "
        "meeting the same text, for the gamma that was best on these very requests.",
        body,
    )


def answer(study: Study) -> str:
    """Return what to do at the place, with how sure it is."""
    best = study.best
    if best == "ar":
        return "Do not speculate: no policy that drafts is faster than autoregressive decoding here."
    gain = study.speedup(best, "ar")
    words = f"{best} at gamma {study.played[best].policy.gamma}: {times(gain)} as fast as autoregressive decoding"
    if best != "sd" and "sd" in study.played:
        over = study.speedup(best, "sd")
        words += f", and {times(over)} as fast as the best SD (gamma {study.played['sd'].policy.gamma})"
        if over.low <= 1:
            words += ", which is too close to call"
    if math.isnan(gain.low):
        words += "; one request alone gives no interval"
    elif gain.low <= 1:
        words += "; whether it is faster than AR at all is too close to call"
    return words + "."


def line(run: Run) -> tuple[str, ...]:
    """Return a run in a line of the table: over all its places, how often each policy wins and the speed-ups."""
    keys = run.place_columns
    best = run.rows.sort("speedup", descending=True, maintain_order=True)
    best = best.unique(keys, keep="first", maintain_order=True) if keys else best[:1]
    # Autoregressive decoding may win without being among the policies: it is what speed-up is over.
    best = best.with_columns(policy=pl.when(pl.col("speedup") < 1).then(pl.lit("ar")).otherwise("policy"))
    wins = best["policy"].value_counts(sort=True)
    if len(best) == 1:
        won = best["policy"][0] + (f", gamma {best['gamma'][0]}" if best["policy"][0] != "ar" else "")
    else:
        won = ", ".join(f"{name} at {count:,}" for name, count in wins.iter_rows())
    low, high = float(best.select(pl.col("speedup").min()).item()), float(best.select(pl.col("speedup").max()).item())
    speedups = f"{high:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
    return run.record.title, f"{len(best):,}", won, speedups


def rests_on(run: Run) -> str:
    """Return what the run's numbers stand on."""
    settings = run.record.settings
    law, model = settings["acceptance"].get("law"), settings["cost"].get("model")
    trace = f"recorded in trace {run.trace.name}" if run.trace else f"drawn from the law {law}"
    worst = run.rows["unknown_rounds"].max()
    unknown = (
        f". Up to {percent(worst)} of target forwards went past what the trace recorded: those speeds are too low"
        if isinstance(worst, float) and worst > 0
        else ""
    )
    return (
        f"Acceptance {trace}, cost model {model}, simulated by {run.record.driver}, "
        f"pearl_sim {run.record.pearl_sim}, {run.record.created[:10]}{unknown}"
    )


def times(ratio: Interval) -> str:
    """Return a ratio with its interval, as far as there is one."""
    if math.isnan(ratio.low):
        return f"{ratio.mean:.2f} times"
    return f"{ratio.mean:.2f} times [{ratio.low:.2f} to {ratio.high:.2f}]"
