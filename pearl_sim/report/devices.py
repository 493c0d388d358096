"""What the speed costs in devices: PEARL keeps two busy where SD makes do with one."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from pearl_sim.cost import Cost
from pearl_sim.figure import COLOURS, colour
from pearl_sim.report.section import Figure, Section, Table, Text
from pearl_sim.report.study import Study
from pearl_sim.rules import Policy


def devices(policy: Policy, cost: Cost) -> int:
    """Return how many devices a policy holds.

    A policy that runs both models at once gives each its own, tensor parallelism counted, unless the cost model
    says that they share one (contention over 1); others let the draft run on the target's.
    """
    target, draft = (cost.target.tensor_parallel, cost.draft.tensor_parallel) if cost.model == "roofline" else (1, 1)
    together = policy.gamma > 0 and (policy.pre_verify or policy.post_verify)
    return target + draft if together and cost.contention == 1 else target


def price(study: Study) -> pl.DataFrame:
    """Return policy, gamma, devices, speedup, speedup_per_device and device_ms_per_token of every policy played.

    speedup_per_device is over autoregressive decoding's own speed for each of its devices.
    """
    baseline = devices(study.played["ar"].policy, study.cost)
    rows = []
    for name, played in study.played.items():
        held, speedup = devices(played.policy, study.cost), study.speedup(name, "ar").mean
        time_ms = sum(request.time_ns for request in played.totals) / 1e6
        tokens = sum(request.tokens for request in played.totals)
        rows.append((name, played.policy.gamma, held, speedup, speedup * baseline / held, held * time_ms / tokens))
    columns = ("policy", "gamma", "devices", "speedup", "speedup_per_device", "device_ms_per_token")
    return pl.DataFrame(rows, columns, orient="row")


def section(studies: Sequence[Study]) -> Section:
    """Return a figure and a table for every place studied."""
    body: list[Figure | Table | Text] = []
    for number, study in enumerate(studies, start=1):
        table = price(study)
        body += [*study.heading(len(studies)), _figure(study, table, number), _table(table)]
    return Section(
        "devices",
        "What it costs in devices",
        "The left bars are speed-up, the right ones speed-up for each device held: a policy below 1 there serves fewer "
        "tokens for the same money. Assumed: a device is paid for the whole time, busy or idle; AR and SD run the "
        "draft on the target's device, PEARL and its ablations on one of its own, all of equal price; one request at "
        "a time.",
        body,
    )


def _figure(study: Study, table: pl.DataFrame, number: int) -> Figure:
    names = table["policy"].to_list()
    kinds = {"speedup": "speed-up", "speedup_per_device": "speed-up per device"}
    long = table.unpivot(list(kinds), index=["policy", "gamma", "devices"], variable_name="kind", value_name="value")
    long = long.with_columns(pl.col("kind").replace_strict(kinds))
    bars = (
        alt.Chart()
        .mark_bar(height=18)
        .encode(
            x=alt.X("value:Q", title="over autoregressive decoding"),
            y=alt.Y("policy:N", sort=names, title=None),
            color=colour(names),
            tooltip=["policy", "gamma", "devices", "kind", alt.Tooltip("value:Q", format=".3g")],
        )
    )
    parity = alt.Chart().mark_rule(color="#888888", strokeDash=[2, 2]).encode(x=alt.datum(1))
    chart = (
        alt.layer(bars, parity, data=long)
        .properties(width=260, height=alt.Step(28))
        .facet(facet=alt.Facet("kind:N", title=None, sort=list(kinds.values())), columns=2)
        .properties(title="Speed-up, and speed-up for each device")
    )
    words = "The dotted line is autoregressive decoding on one target."
    return Figure(f"devices_{number}", chart, words, [(name, COLOURS[name]) for name in names], study.title)


def _table(table: pl.DataFrame) -> Table:
    rows = [
        (name, str(gamma), str(held), f"{speedup:.2f}", f"{each:.2f}", f"{cost:.4g}")
        for name, gamma, held, speedup, each, cost in table.iter_rows()
    ]
    headings = ("policy", "gamma", "devices", "speed-up", "speed-up per device", "device-ms per token")
    return Table(headings, rows)
