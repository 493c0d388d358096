"""What an importer has read, on its way to a trace: a few bytes a position, however many requests there are.

What rounds of speculative decoding tell.  A round that starts after v verified tokens, drafts d and has a of them
accepted says that run[v] = a, if a < d.  If a = d the draft was right as far as anyone looked: run[v] is at least a,
and whether the draft would have written the token that the target added is unknown.  Such runs are censored.

Positions inside a round were no starts of a draft, but for an ordinary draft model, whose token at a position does
not depend on where it began, run[v + i] = a - i follows.  For a draft that depends on where it began (EAGLE, Medusa,
n-grams) that is an inference; replay of plain speculative decoding at the recorded gamma never reads it.
"""

from array import array
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from pearl_sim.errors import InputError
from pearl_sim.importers.lines import sha256
from pearl_sim.judge import Censored, Runs
from pearl_sim.trace import CENSORED, REQUESTS, STEPS, TOKENS, Provenance, Trace

INSIDE = (
    "runs at positions inside a round follow for an ordinary draft model; for one that depends on where it began "
    "(EAGLE, Medusa, n-grams) they are inferred, and only sd at the recorded gamma does without them"
)
FIRST = "a token that prefill yields was put before the first recorded round of every request"


class Rounds(NamedTuple):
    """The rounds of a request, in order: how many tokens were drafted and how many of them accepted."""

    drafted: Sequence[int]
    accepted: Sequence[int]

    def runs(self, cut_short: bool = False) -> tuple[Runs, Censored]:
        """Return the run at every output position, and which are known only to be at least so long.

        `cut_short`: the request's end may have cut its last round, whose run is then censored too.
        """
        accepted, drafted = np.asarray(self.accepted, np.int64), np.asarray(self.drafted, np.int64)
        unknown = accepted >= drafted
        if cut_short:
            unknown[-1:] = True
        # A round's own positions are those of its accepted drafts and of the target's token; prefill's stands first.
        last = np.cumsum(accepted + 1)
        runs = np.repeat(last, accepted + 1) - np.arange(1, 1 + int(last[-1]) if len(last) else 1)
        # No draft starts at position 0, before the token that prefill yields.
        return np.append(0, runs), np.append(False, np.repeat(unknown, accepted + 1))


class Recording:
    """Requests as they are read, until they are a trace."""

    def __init__(self, tokens: bool = False, censored: bool = False) -> None:
        """Start with no requests; `tokens` and `censored` say which columns the source has."""
        self.requests: list[tuple[str, str | None, int, int, None]] = []
        self.runs = array("q")
        self.tokens = array("q") if tokens else None
        self.censored = array("b") if censored else None
        self._names: set[str] = set()

    def add(
        self,
        where: str,
        name: str,
        category: str | None,
        prompt_tokens: int,
        runs: Sequence[int] | Runs,
        tokens: Sequence[int] = (),
        censored: Censored | None = None,
    ) -> None:
        """Add a request, its runs at every output position; InputError if its name is taken."""
        if name in self._names:
            raise InputError(where, f"request {name!r} is there twice")
        self._names.add(name)
        self.requests.append((name, category, prompt_tokens, len(runs), None))
        self.runs.frombytes(np.asarray(runs, np.int64).tobytes())
        if self.tokens is not None:
            self.tokens.frombytes(np.asarray(tokens, np.int64).tobytes())
        if self.censored is not None:
            assert censored is not None
            self.censored.frombytes(censored.astype(np.int8).tobytes())

    def trace(self, out: Path, provenance: Provenance) -> Trace:
        """Return the trace to be saved at `out`."""
        requests = pl.DataFrame(self.requests, REQUESTS, orient="row")
        columns = {"run": self.runs, "token": self.tokens, "censored": self.censored}
        given = {name: pl.Series(np.frombuffer(values, values.typecode)) for name, values in columns.items() if values}
        if not any(self.censored or ()):
            given.pop("censored", None)
        tokens = (
            requests.select("request", position=pl.int_ranges(pl.col("output_tokens")))
            .explode("position")
            .with_columns(**given)
        )
        schema = TOKENS | (CENSORED if "censored" in given else {})
        whole = tokens.with_columns(pl.lit(None).alias(name) for name in schema if name not in tokens.columns)
        return Trace(
            out, provenance, requests, whole.select(list(schema)).cast(pl.Schema(schema)), pl.DataFrame(schema=STEPS)
        )


def provenance(
    kind: str,
    files: Sequence[Path],
    options: Mapping[str, object],
    out: Path,
    run_limit: int | None,
    notes: Sequence[str],
) -> Provenance:
    """Return where an imported record comes from: the files by digest, the command without its directories."""
    named = ", ".join(f"{file.name} (sha256 {sha256(file)})" for file in files)
    given = [f"--{key.replace('_', '-')} {value}" for key, value in options.items() if value is not None]
    return Provenance(
        source=f"imported from {kind}: {named}",
        created=date.today().isoformat(),
        command=" ".join(["pearl-sim import", kind, *(file.name for file in files), *given, "--out", out.name]),
        run_limit=run_limit,
        notes=tuple(notes),
    )
