"""How well the simulation tells the time, measured: a profile and real runs side by side, then compared.

After each request that the engine decodes under every policy and gamma, one pass of a profile is made, so that both see
the same machine.  The simulator is then given the trace's acceptance and the profile's times, once as a whole and once
only the part that it would be without the ablations and with two of the gammas: the other runs are then predicted from
steps of other sizes, in circumstances that were not profiled.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pearl_sim import profile
from pearl_sim.affine_fit import as_toml, fit_cost
from pearl_sim.capture import capture
from pearl_sim.compare import compare
from pearl_sim.cost import EmpiricalCost
from pearl_sim.errors import InputError
from pearl_sim.models.pair import Pair
from pearl_sim.policies import POLICIES, label
from pearl_sim.prompts import Prompt
from pearl_sim.recording import discard, hold_to_plan, part_of
from pearl_sim.trace import STEPS, Profile, Trace, load, save

GAMMAS = (1, 2, 4, 6, 8)
KEPT, PROFILED = (2, 8), ("ar", "sd", "pearl")
"""The gammas and policies that the smaller profile keeps."""

RUNS, WHOLE, PART = "runs", "profile", "profile_part"
"""What a measurement consists of, a directory each: a trace, and two profiles."""


class Measurement(NamedTuple):
    """A measurement: the runs, the whole profile, and what compare says of it and of the part of it."""

    runs: Trace
    profile: Profile
    found: pl.DataFrame


def measure(
    pair: Pair,
    prompts: Sequence[Prompt],
    tokens: int,
    out: Path,
    command: str,
    resume: bool = False,
    on_request: Callable[[int, int], object] = lambda number, written: None,
) -> Measurement:
    """Record runs and profile at `out`, an earlier measurement there replaced, and compare them.

    InputError if `out` is something else, or an interrupted measurement is there and `resume` is false or its
    settings differ.
    """
    refuse_foreign(out)
    part = part_of(out)
    models = [str(settings) for settings in (pair.target_settings, pair.draft_settings, pair.sampling)]
    hold_to_plan(part, {"models": models, "prompts": [prompt.text for prompt in prompts], "tokens": tokens}, resume)
    lengths = sorted(len(pair.encode(prompt.text, tokens)) for prompt in prompts)
    # Contexts around those that the runs see: a short prompt at its beginning, a long one at its end.
    contexts = (lengths[len(lengths) // 4], lengths[3 * len(lengths) // 4] + tokens * 3 // 4)
    grid = profile.Grid(GAMMAS, contexts, (1,))
    passes = [part / f"pass {number}.parquet" for number in range(len(prompts))]

    def after(number: int, written: int) -> None:
        if not passes[number].exists():
            half = passes[number].with_suffix(".half")
            pl.DataFrame(profile.one_pass(pair, grid, number), STEPS, orient="row").write_parquet(half)
            half.replace(passes[number])
        on_request(number, written)

    policies = {label(name, gamma): POLICIES[name](gamma) for name in POLICIES for gamma in GAMMAS}
    if (part / RUNS).exists():
        runs = load(part / RUNS)
    else:
        runs = capture(pair, prompts, tokens, policies, part / RUNS, command, resume, after)
    for name in (WHOLE, PART):  # of an attempt that got so far
        shutil.rmtree(part / name, ignore_errors=True)
    whole = profile.finish(pair, pl.concat(map(pl.read_parquet, passes)), len(prompts), part / WHOLE, command)
    save(kept(whole, part / PART))
    found = judge(part)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for name in (RUNS, WHOLE, PART):
        (part / name).replace(out / name)
    discard(out)
    return Measurement(runs, whole, found)


def kept(whole: Profile, path: Path) -> Profile:
    """Return the part of a profile that knows PROFILED at the gammas KEPT only."""
    names = [label(name, gamma) for name in PROFILED for gamma in KEPT]
    steps = whole.steps.filter(profile.profiled(names))
    note = f"part of {whole.path.name}: {', '.join(dict.fromkeys(names))}"
    provenance = whole.provenance.model_copy(update={"notes": (*whole.provenance.notes, note)})
    return Profile(path, provenance, steps, as_toml(fit_cost(steps), path.name))


def judge(measurement: Path) -> pl.DataFrame:
    """Return the comparison of the runs recorded at `measurement` with its whole profile, then with the part."""
    runs = load(measurement / RUNS)
    costs = {"everything profiled": WHOLE, "only AR, SD and PEARL at gamma 2 and 8 profiled": PART}
    return pl.concat(
        [compare(runs, EmpiricalCost(trace=measurement / directory), called) for called, directory in costs.items()]
    )


def refuse_foreign(out: Path) -> None:
    """Raise InputError if `out` exists and is no measurement that may be replaced."""
    if out.exists() and {entry.name for entry in out.iterdir()} != {RUNS, WHOLE, PART}:
        raise InputError(out, "exists and holds no earlier measurement; choose another --out")
