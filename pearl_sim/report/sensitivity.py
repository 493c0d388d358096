"""How far may each input move before another policy wins?  The places studied, replayed with one input changed.

With acceptance as it is, which rounds take place does not depend on how long they last, so other times only price the
same rounds anew.  Other acceptance is replayed: below what was recorded, accepted drafts are spoilt at random; above
it, rejected ones are healed, by the same luck at every step.  At every value each policy takes its best gamma.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import altair as alt
import numpy as np
import polars as pl

from pearl_sim.acceptance import Floats, uniforms
from pearl_sim.figure import COLOURS, colour
from pearl_sim.judge import Runs
from pearl_sim.point import requests_of
from pearl_sim.policies import POLICIES
from pearl_sim.report.section import Figure, Section, Table, Text, ms, number
from pearl_sim.report.study import ClosedForm, Study, closed_form, first, timelines, totals
from pearl_sim.rules import candidates
from pearl_sim.timeline import Timeline

STEPS, ALPHA_STEPS = 121, 50
REACH = 8
"""Times move by up to this factor either way."""
MARGIN = 0.001
"""A lead of less changes no winner: luck would make the colours flicker where two policies are as good as equal."""
MOST_TOKENS, MOST_GAMMAS = 10_000, 16
LUCK_SEED = 0

Choice: TypeAlias = tuple[str, int]
"""A policy at a gamma."""


class Rounds(NamedTuple):
    """Every round of one choice over all requests, prefill included: its parts, and what hand-over came to."""

    draft_ns: Floats
    score_ns: Floats
    hand_over_ns: float
    checks: int


class Band(NamedTuple):
    """Over `low` to `high` of one input, this policy is the fastest."""

    input: str
    low: float
    high: float
    policy: str


def bands(study: Study, at: ClosedForm) -> list[Band]:
    """Return each input's range cut into stretches by the policy that wins, in the input's own unit.

    alpha goes from 0 to 0.99; times (ns) from 1 / REACH to REACH times their value; sync (ns) from 0 to t_target;
    gamma over those of the run, the same for every policy.
    """
    gammas = _spread(study.gammas, MOST_GAMMAS)
    point = study.run.point(study.place, gammas[-1])
    requests = first(requests_of(point.source), MOST_TOKENS)
    choices = [("ar", 0), *((name, gamma) for name in study.drafting for gamma in gammas)]
    timing = {(name, gamma): point.cost.timing(POLICIES[name](gamma)) for name, gamma in choices}
    played = {
        (name, gamma): _rounds(timelines(POLICIES[name](gamma), requests, timing[name, gamma], point.seed))
        for name, gamma in choices
    }
    found: list[Band] = []
    alphas = np.linspace(0, 0.99, ALPHA_STEPS)
    winners = []
    for alpha in alphas.tolist():
        changed = [request._replace(runs=moved(request.runs, i, at.alpha, alpha)) for i, request in enumerate(requests)]
        times = {}
        for name, gamma in choices:
            taken = totals(POLICIES[name](gamma), changed, timing[name, gamma], point.seed)
            times[name, gamma] = np.array([sum(request.time_ns for request in taken)], float)
        winners += fastest(times, study.best)
    found += merged("alpha", alphas, winners)
    for name, values in _ranges(at).items():
        priced = {choice: _priced(own, at, name, values) for choice, own in played.items()}
        found += merged(name, values, fastest(priced, study.best))
    ones = np.array([at.t_draft])
    base = {choice: _priced(own, at, "t_draft", ones) for choice, own in played.items()}
    at_gamma = [{choice: taken for choice, taken in base.items() if choice[1] in (0, gamma)} for gamma in gammas]
    wins = [fastest(times, study.best)[0] for times in at_gamma]
    return found + merged("gamma", np.asarray(gammas, float), wins)


def moved(runs: Runs, request: int, alpha: float, to: float) -> Runs:
    """Return the run lengths of a request whose drafts were accepted with `alpha`, as if it were `to`."""
    luck = uniforms(LUCK_SEED, request, len(runs))
    if to <= alpha:
        # An accepted draft stays so with to / alpha; a chain ends at the first that does not.
        spoilt = luck >= (to / alpha if alpha else 1.0)
        places = np.arange(len(runs))
        end = np.minimum.accumulate(np.where(spoilt, places, len(runs) + runs.max(initial=0))[::-1])[::-1]
        return np.minimum(runs, end - places)
    healed = (luck < (to - alpha) / (1 - alpha)).tolist()
    longer = runs.tolist()
    for place in range(len(longer) - 1, -1, -1):
        rejected = place + longer[place]
        if rejected < len(longer) and healed[rejected]:
            longer[place] += 1 + (longer[rejected + 1] if rejected + 1 < len(longer) else 0)
    return np.asarray(longer, np.int64)


def fastest(times: Mapping[Choice, Floats], now: str) -> list[str]:
    """Return the policy of the least time at every value; `now` stays so until it is beaten by more than MARGIN."""
    policies = list(dict.fromkeys(name for name, _ in times))
    own = [[taken for (policy, _), taken in times.items() if policy == name] for name in policies]
    least = np.stack([np.min(taken, axis=0) for taken in own])
    kept = least[policies.index(now)] <= least.min(axis=0) * (1 + MARGIN)
    best = np.argmin(least, axis=0)
    return [now if still else policies[i] for still, i in zip(kept.tolist(), best.tolist(), strict=True)]


def merged(name: str, values: Floats, winners: Sequence[str]) -> list[Band]:
    """Return the stretches of equal winner; a change is put midway between the values that see it."""
    found: list[Band] = []
    for value, policy in zip(values.tolist(), winners, strict=True):
        if found and found[-1].policy == policy:
            found[-1] = found[-1]._replace(high=value)
            continue
        edge = value
        if found:
            edge = (found[-1].high + value) / 2
            found[-1] = found[-1]._replace(high=edge)
        found.append(Band(name, edge, value, policy))
    return found


def margins(
    at: ClosedForm, gamma: int, found: Sequence[Band]
) -> list[tuple[str, float, Band | None, str, Band | None]]:
    """Return (input, its value, the band below the present one, the present winner, the band above it)."""
    rows = []
    for name, value in {**_values(at), "gamma": float(gamma)}.items():
        own = [band for band in found if band.input == name]
        i = next((i for i, band in enumerate(own) if band.low <= value <= band.high), None)
        if i is not None:
            below, above = own[i - 1] if i else None, own[i + 1] if i + 1 < len(own) else None
            rows.append((name, value, below, own[i].policy, above))
    return rows


def section(studies: Sequence[Study]) -> Section | None:
    """Return strips and a table for every place studied; None where no draft was ever checked."""
    body: list[Figure | Table | Text] = []
    for count, study in enumerate(studies, start=1):
        at = closed_form(study)
        if at is None:
            continue
        found, gamma = bands(study, at), study.played[study.best].policy.gamma
        policies = [name for name in POLICIES if name in {band.policy for band in found}]
        caption = (
            "Each strip is the range of one input, its colour the fastest policy there; the line is where the place "
            f"stands: alpha {at.alpha:.3g}, and on average t_draft {ms(at.t_draft)}, t_target {ms(at.t_target)}, sync "
            f"{ms(at.sync)}. Replayed with that input changed, all its times by the same factor."
        )
        strips = _strips(at, gamma, found, policies)
        rows = [
            (
                name,
                _show(name, value),
                winner,
                f"below {_show(name, below.high)}: {below.policy}" if below else "at no lower value looked at",
                f"above {_show(name, above.low)}: {above.policy}" if above else "at no higher value looked at",
            )
            for name, value, below, winner, above in margins(at, gamma, found)
        ]
        body += study.heading(len(studies))
        body.append(
            Figure(
                f"sensitivity_{count}", strips, caption, [(name, COLOURS[name]) for name in policies], about=study.title
            )
        )
        body.append(Table(("input", "now", "wins now", "another wins", "another wins"), rows))
    lead = (
        "Where the line stands near a change of colour, measure that input again before you decide. One input moves at "
        "a time, every policy takes its best gamma of those tried, and a lead under 0.1 % changes nothing."
    )
    return Section("sensitivity", "How far may an input move before the winner changes?", lead, body) if body else None


def _rounds(played: Sequence[Timeline]) -> Rounds:
    steps = [step for timeline in played for step in timeline]
    return Rounds(
        np.array([step.draft_ns for step in steps], float),
        np.array([step.score_ns for step in steps], float),
        float(sum(step.stop - step.start - max(step.draft_ns, step.score_ns) for step in steps)),
        sum(candidates(step.frontier, step.round) > 0 for step in steps),
    )


def _values(at: ClosedForm) -> dict[str, float]:
    return {"alpha": at.alpha, "t_draft": at.t_draft, "t_target": at.t_target, "sync": at.sync}


def _ranges(at: ClosedForm) -> dict[str, Floats]:
    return {
        "t_draft": np.geomspace(at.t_draft / REACH, at.t_draft * REACH, STEPS),
        "t_target": np.geomspace(at.t_target / REACH, at.t_target * REACH, STEPS),
        "sync": np.linspace(0, max(at.t_target, 2 * at.sync), STEPS),
    }


def _priced(rounds: Rounds, at: ClosedForm, name: str, values: Floats) -> Floats:
    """Return the time of these rounds at each value of the input `name`, the others as they are."""
    factor = {
        key: values / value if key == name and value else np.ones_like(values) for key, value in _values(at).items()
    }
    longest = [
        float(np.maximum(draft * rounds.draft_ns, target * rounds.score_ns).sum())
        for draft, target in zip(factor["t_draft"].tolist(), factor["t_target"].tolist(), strict=True)
    ]
    hand_over = rounds.hand_over_ns * factor["sync"]
    if name == "sync" and not at.sync:
        hand_over = rounds.checks * values
    return np.asarray(longest) + hand_over


def _spread(values: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the values, first and last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _show(name: str, value: float) -> str:
    return number(value) if name in ("alpha", "gamma") else ms(value)


def _strips(at: ClosedForm, gamma: int, found: Sequence[Band], policies: list[str]) -> alt.VConcatChart:
    """Return a strip an input, one below the other, each with its own axis."""
    strips = []
    titles = {"alpha": "acceptance alpha", "gamma": "gamma, the same for every policy"}
    for name, value in {**_values(at), "gamma": float(gamma)}.items():
        unit, half = 1 if name in titles else 1e6, 0.5 if name == "gamma" else 0.0
        own = [band for band in found if band.input == name]
        rows = [
            {
                "from": band.low / unit - (half if i == 0 else 0),
                "to": band.high / unit + (half if i == len(own) - 1 else 0),
                "policy": band.policy,
                "range": f"{_show(name, band.low)} to {_show(name, band.high)}",
            }
            for i, band in enumerate(own)
        ]
        ends = [(own[0].low / unit) - half, (own[-1].high / unit) + half]
        scale = alt.Scale(type="log" if name.startswith("t_") else "linear", domain=ends, nice=False)
        axis = alt.Axis(
            grid=False, labelOverlap="greedy", tickCount=10, tickMinStep=1 if name == "gamma" else alt.Undefined
        )
        bars = (
            alt.Chart(pl.DataFrame(rows))
            .mark_bar(height=18)
            .encode(
                x=alt.X("from:Q", scale=scale, title=titles.get(name, f"{name}, ms"), axis=axis),
                x2="to:Q",
                color=colour(policies),
                tooltip=["policy:N", alt.Tooltip("range:N", title=name)],
            )
        )
        now = alt.Chart(pl.DataFrame({"now": [value / unit]}), name=f"ink_{name}").encode(x="now:Q")
        tick = now.mark_tick(color="black", thickness=3.5, size=26, opacity=1)
        strips.append(alt.layer(bars, tick).properties(width=860, height=26))
    title = "Fastest policy along each input"
    chart: alt.VConcatChart = alt.vconcat(*strips, spacing=6).resolve_scale(x="independent").properties(title=title)
    return chart
