"""Measuring a machine: how long every kind of step takes, alone and beside the other model.

The engine itself is run on a made-up text, hardware in the loop, under every policy.  Together they make every kind of
round there is (the target alone, the draft alone, both, each after work and after a rest), so each step is timed where
it will take place, with the hand-over, the rollbacks and the caches of real decoding.  Whole passes over all of them
are repeated, in turns, so that a machine that slows down slows all of them alike.
"""

from collections.abc import Callable, Sequence
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pearl_sim.acceptance import Iid
from pearl_sim.affine_fit import as_toml, fit_cost
from pearl_sim.drivers.real import decode
from pearl_sim.errors import InputError
from pearl_sim.models.drafting import Script
from pearl_sim.models.lm import describe
from pearl_sim.models.pair import Pair
from pearl_sim.policies import POLICIES, label
from pearl_sim.profile_summary import doubts
from pearl_sim.provenance import provenance
from pearl_sim.recording import Piece, Row, begin, discard, in_pieces, step_rows
from pearl_sim.replay import filler, warm_up
from pearl_sim.rules import Policy
from pearl_sim.trace import Profile, save

ROUNDS = 12
"""Rounds of each kind of decoding in a pass."""

ALPHA = 0.8
"""How much of the made-up text is accepted: enough for chains, and for rollbacks."""

PROFILE = "profile "
"""What the source of a profile's steps begins with; then comes the policy's label."""


class Grid(NamedTuple):
    """What is profiled: every size that these gammas need, at each context length and batch size."""

    gammas: Sequence[int]
    contexts: Sequence[int]
    batches: Sequence[int]

    def policies(self) -> dict[str, Policy]:
        """Return the policies that make every kind of round: all of them, at these gammas."""
        return {label(name, gamma): POLICIES[name](gamma) for name in POLICIES for gamma in self.gammas}


def profile(
    pair: Pair,
    grid: Grid,
    passes: int,
    out: Path,
    command: str,
    resume: bool,
    on_pass: Callable[[int, int], object] = lambda number, tokens: None,
) -> Profile:
    """Record `passes` passes over `grid`, fit an affine cost, and save both at `out`; return what was saved.

    InputError if a context overruns the models', or as `begin`.
    """
    beyond = ROUNDS * (max(grid.gammas) + 1) + max(grid.gammas)
    if max(grid.contexts) + beyond > pair.context:
        raise InputError(
            "contexts",
            f"{max(grid.contexts)} tokens and up to {beyond} written after them are over the models' context of "
            f"{pair.context}: profile shorter ones",
        )
    if pair.target.graph and len(grid.batches) > 1:
        # The compiled forwards know one cache, and every batch size has its own: they would compile again each time.
        raise InputError("batches", "in graph mode profile one batch size at a time")
    models = [describe(settings).model_dump() for settings in (pair.target_settings, pair.draft_settings)]
    plan = {"models": [*models, pair.draft_settings.layers], "grid": list(grid), "passes": passes}
    begin(out, {**plan, "sampling": pair.sampling.model_dump()}, resume)
    for context, batch in product({min(grid.contexts), max(grid.contexts)}, grid.batches):
        warm_up(pair, grid.policies(), filler(context), batch=batch)
    recorded = in_pieces(out, passes, lambda number: Piece([], [], one_pass(pair, grid, number)), on_pass)
    made = finish(pair, recorded.steps, passes, out, command)
    discard(out)
    return made


def finish(pair: Pair, steps: pl.DataFrame, passes: int, out: Path, command: str) -> Profile:
    """Save the steps of a profile at `out`, with the cost fitted to them and what to think of them; return it."""
    found = fit_cost(steps)
    notes = [f"{passes} passes of {ROUNDS} rounds of each kind of decoding", *doubts(steps)]
    made = Profile(out, provenance(pair, "profiled", command, None, notes), steps, as_toml(found, out.name))
    save(made)
    return made


def one_pass(pair: Pair, grid: Grid, number: int) -> list[Row]:
    """Return the steps of one pass; the pass is their request, and their source says what ran."""
    rows: list[Row] = []
    runs = Iid(alpha=ALPHA).runs(0, number, ROUNDS * (max(grid.gammas) + 2)).tolist()
    script = Script([1] * len(runs), runs)
    turns = list(product(grid.batches, grid.contexts, grid.policies().items()))
    # Each pass starts elsewhere, so that none is always the one after the longest pause or the widest forward.
    first = number * len(turns) // 3 % len(turns)
    for batch, context, (name, policy) in turns[first:] + turns[:first]:
        rounds = decode(
            policy,
            filler(context),
            len(runs),
            pair.target,
            pair.draft,
            pair.sampling,
            script=script,
            batch=batch,
        )
        emitted = list(islice(rounds, 1 + ROUNDS))
        rows += step_rows(emitted, f"{PROFILE}{name} at {context} x {batch}", f"{number:05}", context, batch)
    for batch, context in product(grid.batches, grid.contexts):
        # No policy has the draft read a prompt by itself, but what it takes alone belongs to a profile.
        assert pair.draft, "a profile needs a draft"
        pair.draft.read(filler(context), batch=batch)
        read = pair.draft.finish()
        source = f"{PROFILE}prompt at {context} x {batch}"
        rows.append((source, f"{number:05}", 0, "draft", read.start_ns, read.stop_ns, context, 0, batch, False))
    return rows


def profiled(labels: Sequence[str]) -> pl.Expr:
    """Return which steps of a profile were made under one of these policies."""
    return pl.col("source").str.strip_prefix(PROFILE).str.split(" ").list.first().is_in(labels)
