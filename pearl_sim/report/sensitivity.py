"""How far may each input move before another policy wins?  Exact theory around each place studied.

One input moves, the others stay; at every value each policy takes the best of the gammas that the run tried.
"""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import numpy as np
import polars as pl

from pearl_sim.acceptance import Floats
from pearl_sim.figure import COLOURS, colour
from pearl_sim.report import exact
from pearl_sim.report.section import Figure, Section, Table, ms, number
from pearl_sim.report.study import Fit

STEPS = 121
REACH = 8
"""Times and sync move by up to this factor either way."""


class Band(NamedTuple):
    """Over `low` to `high` of one input, this policy is the fastest."""

    input: str
    low: float
    high: float
    policy: str


def bands(fit: Fit, gammas: Sequence[int]) -> list[Band]:
    """Return each input's range cut into stretches by the policy that wins, in the input's own unit.

    alpha goes from 0 to 0.99; times (ns) from 1 / REACH to REACH times their value; sync (ns) from 0 to t_target;
    gamma over `gammas`, the same for every policy.
    """
    found: list[Band] = []
    for name, values in _ranges(fit).items():
        found += _merged(name, values, _winners(fit, name, values, gammas))
    sized = [_winner(fit, gamma) for gamma in gammas]
    edges = [gamma - 0.5 for gamma in gammas]
    for i, policy in enumerate(sized):
        end = edges[i + 1] if i + 1 < len(edges) else gammas[i] + 0.5
        if found[-1].input == "gamma" and found[-1].policy == policy:
            found[-1] = found[-1]._replace(high=end)
        else:
            found.append(Band("gamma", edges[i], end, policy))
    return found


def margins(fit: Fit, found: Sequence[Band]) -> list[tuple[str, float, Band | None, str, Band | None]]:
    """Return (input, its value, the band below the present one, the present winner, the band above it)."""
    rows = []
    for name, value in _values(fit).items():
        own = [band for band in found if band.input == name]
        at = next((i for i, band in enumerate(own) if band.low <= value <= band.high), None)
        if at is None:
            continue
        below, above = own[at - 1] if at else None, own[at + 1] if at + 1 < len(own) else None
        rows.append((name, value, below, own[at].policy, above))
    return rows


def section(places: Sequence[tuple[str, Fit, Sequence[int]]]) -> Section:
    """Return a strip an input and a table, for each place: its title, its fit, the gammas that its run tried."""
    body: list[Figure | Table] = []
    for number_, (title, fit, gammas) in enumerate(places, start=1):
        found = bands(fit, gammas)
        policies = [name for name in exact.NAMES if name in {band.policy for band in found}]
        body.append(
            Figure(
                f"sensitivity_{number_}",
                _strips(fit, found, policies),
                f"{title}. Each strip is the range of one input, its colour the fastest policy there; the line is "
                f"where the place stands (alpha {fit.alpha:.3g}, t_draft {ms(fit.t_draft)}, t_target "
                f"{ms(fit.t_target)}, sync {ms(fit.sync)}"
                + ("" if fit.exact else "; fitted, as if times were constant and acceptance i.i.d.")
                + ").",
                [(name, COLOURS[name]) for name in policies],
            )
        )
        rows = [
            (
                name,
                _show(name, value),
                winner,
                f"below {_show(name, below.high)}: {below.policy}" if below else "at no lower value looked at",
                f"above {_show(name, above.low)}: {above.policy}" if above else "at no higher value looked at",
            )
            for name, value, below, winner, above in margins(fit, found)
        ]
        body.append(Table(("input", "now", "wins now", "another wins", "another wins"), rows))
    return Section(
        "sensitivity",
        "How far may an input move before the winner changes?",
        "Where the line stands near a change of colour, measure that input again before you decide; exact theory, one "
        "input moved at a time.",
        body,
    )


def _values(fit: Fit) -> dict[str, float]:
    return {"alpha": fit.alpha, "t_draft": fit.t_draft, "t_target": fit.t_target, "sync": fit.sync}


def _ranges(fit: Fit) -> dict[str, Floats]:
    return {
        "alpha": np.linspace(0, 0.99, STEPS),
        "t_draft": np.geomspace(fit.t_draft / REACH, fit.t_draft * REACH, STEPS),
        "t_target": np.geomspace(fit.t_target / REACH, fit.t_target * REACH, STEPS),
        "sync": np.linspace(0, max(fit.t_target, 2 * fit.sync), STEPS),
    }


def _winners(fit: Fit, name: str, values: Floats, gammas: Sequence[int]) -> list[str]:
    """Return the fastest policy at each value of the input `name`."""
    ones = np.ones_like(values)
    given = {key: value * ones for key, value in _values(fit).items()} | {name: values}
    times = given["t_draft"], given["t_target"], given["sync"]
    if name == "alpha":
        speed = np.concatenate(
            [exact.best(alpha, gammas, *(time[:1] for time in times)).speed for alpha in values.tolist()], axis=1
        )
    else:
        speed = exact.best(fit.alpha, gammas, *times).speed
    return _fastest(speed)


def _winner(fit: Fit, gamma: int) -> str:
    times = (np.array([time]) for time in (fit.t_draft, fit.t_target, fit.sync))
    return _fastest(exact.best(fit.alpha, [gamma], *times).speed)[0]


def _fastest(speed: Floats) -> list[str]:
    """Return the fastest policy of each column, the plainest of equals."""
    return [exact.NAMES[i] for i in np.argmax(speed >= speed.max(axis=0) * (1 - 1e-9), axis=0)]


def _merged(name: str, values: Floats, winners: Sequence[str]) -> list[Band]:
    """Return the stretches of equal winner; a change is put midway between the values that see it."""
    found: list[Band] = []
    for value, policy in zip(values.tolist(), winners, strict=True):
        if found and found[-1].policy == policy:
            found[-1] = found[-1]._replace(high=value)
        else:
            start = (found[-1].high + value) / 2 if found else value
            if found:
                found[-1] = found[-1]._replace(high=start)
            found.append(Band(name, start, value, policy))
    return found


def _show(name: str, value: float) -> str:
    return number(value) if name in ("alpha", "gamma") else ms(value)


def _strips(fit: Fit, found: Sequence[Band], policies: list[str]) -> alt.VConcatChart:
    """Return a strip an input, one below the other, each with its own axis."""
    strips = []
    titles = {"alpha": "acceptance alpha", "gamma": "gamma, the same for every policy"}
    for name in dict.fromkeys(band.input for band in found):
        unit = 1 if name in titles else 1e6
        rows = [
            {
                "from": band.low / unit,
                "to": band.high / unit,
                "policy": band.policy,
                "range": f"{_show(name, band.low)} to {_show(name, band.high)}",
            }
            for band in found
            if band.input == name
        ]
        scale = alt.Scale(
            type="log" if name.startswith("t_") else "linear",
            domain=[rows[0]["from"], rows[-1]["to"]],
            nice=False,
        )
        title = titles.get(name, f"{name}, ms")
        whole = alt.Axis(grid=False, labelOverlap="greedy", tickMinStep=1 if name == "gamma" else alt.Undefined)
        bars = (
            alt.Chart(pl.DataFrame(rows))
            .mark_bar(height=18)
            .encode(
                x=alt.X("from:Q", scale=scale, title=title, axis=whole),
                x2="to:Q",
                color=colour(policies),
                tooltip=["policy:N", alt.Tooltip("range:N", title=name)],
            )
        )
        value = _values(fit).get(name)
        now = [] if value is None else [_now(value / unit)]
        strips.append(alt.layer(bars, *now).properties(width=420, height=24))
    return alt.vconcat(*strips, spacing=6).resolve_scale(x="independent").properties(title="Fastest policy along each input")


def _now(value: float) -> alt.LayerChart:
    at = alt.Chart(pl.DataFrame({"now": [value]})).encode(x="now:Q")
    return alt.layer(
        at.mark_tick(color="white", thickness=6, size=24, opacity=1),
        at.mark_tick(color="black", thickness=2.5, size=24, opacity=1),
    )
