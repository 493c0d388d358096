"""The trace on disk: one recorded run, enough to replay any policy.  A directory of four files.

trace.json        where it comes from (Provenance)
requests.parquet  one row a request
tokens.parquet    one row an output position, with its run length: what replay stands on
steps.parquet     one row a timed model step; may be missing
A profile has only the first and the last, and the cost model that was fitted to them, cost.toml.
docs/traces.md says what each column means.  Everything is checked on load, and an error names file, column and row.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from pydantic import Field

from pearl_sim.errors import InputError
from pearl_sim.judge import Censored, Request
from pearl_sim.settings import Settings

SCHEMA_VERSION = 1

REQUESTS = {
    "request": pl.String,
    "category": pl.String,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "finish": pl.String,
}
TOKENS = {
    "request": pl.String,
    "position": pl.Int64,
    "token": pl.Int64,
    "run": pl.Int64,
    "draft_token": pl.Int64,
    "margin": pl.Float64,
    "alpha": pl.Float64,
}
STEPS = {
    "source": pl.String,
    "request": pl.String,
    "round": pl.Int64,
    "role": pl.String,
    "start_ns": pl.Int64,
    "stop_ns": pl.Int64,
    "tokens": pl.Int64,
    "context": pl.Int64,
    "batch": pl.Int64,
    "overlapped": pl.Boolean,
}
CENSORED = {"censored": pl.Boolean}
"""A column more of tokens.parquet, for records that stop looking at some runs earlier than at others."""
NULLABLE = {"category", "finish", "token", "draft_token", "margin", "alpha"}


class Model(Settings):
    """One of the two models of a recording."""

    id: str
    revision: str | None = None
    weights_sha256: str | None = None
    parameters: int | None = None
    dtype: str | None = None


class Provenance(Settings):
    """Where a trace comes from, in trace.json; null is what nobody knows."""

    schema_version: Literal[1] = 1
    source: str
    """How the trace was made: captured, imported from which format, or drawn from a law."""
    created: str
    command: str
    draft: Model | None = None
    target: Model | None = None
    device: str | None = None
    software: dict[str, str] = Field(default_factory=dict)
    threads: int | None = None
    execution: Literal["eager", "graph"] | None = None
    sampling: dict[str, str | int | float] = Field(default_factory=dict)
    seed: int | None = None
    prompts: str | None = None
    git_commit: str | None = None
    run_limit: Annotated[int, Field(ge=1)] | None = None
    """The recorder drafted no further than this: a run this long may really be longer."""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """What was inferred or left out rather than recorded."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A recorded run in memory; `steps` has no rows where no latency was recorded.  Only the same object is equal."""

    path: Path
    provenance: Provenance
    requests: pl.DataFrame
    tokens: pl.DataFrame
    steps: pl.DataFrame

    def workload(self, count: int | None, limit: int | None) -> list[Request]:
        """Return the first `count` requests for replay, each at most `limit` tokens long (None: all of them)."""
        runs = self.tokens["run"].to_numpy()
        requests, first = [], 0
        for prompt_tokens, output_tokens in self.requests.select("prompt_tokens", "output_tokens").iter_rows():
            own = runs[first : first + output_tokens]
            first += output_tokens
            requests.append(Request(prompt_tokens, output_tokens if limit is None else min(limit, output_tokens), own))
        return requests[:count]

    def censored(self, count: int | None) -> list[Censored] | None:
        """Return, for the first `count` requests, where a run may be longer than recorded; None if it never is."""
        limit = self.provenance.run_limit
        if "censored" in self.tokens.columns:
            cut = self.tokens["censored"].to_numpy()
        elif limit is not None:
            cut = self.tokens["run"].to_numpy() >= limit
        else:
            return None
        return np.split(cut, np.cumsum(self.requests["output_tokens"].to_numpy())[:-1])[:count]


def sha256(trace: Path) -> str:
    """Return a digest of everything in a trace's directory, by which a changed trace is told."""
    digest = hashlib.sha256()
    for file in sorted(trace.glob("*")):
        if file.is_file():
            digest.update(f"{file.name}:{file.stat().st_size}:".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def refuse_beyond_record(provenance: Provenance, gamma: int, where: object) -> None:
    """Raise InputError about `where`, which says gamma, if the recorder did not see that many drafts in a row."""
    limit = provenance.run_limit
    if limit is not None and gamma > limit:
        raise InputError(
            where,
            f"the trace was recorded with at most {limit} drafts in a row, so nothing is known beyond; "
            f"use {limit} or less",
        )


@dataclass(frozen=True)
class Profile:
    """Timed steps of a machine and a pair, with no acceptance; `cost` is a scenario's [cost] table fitted to them."""

    path: Path
    provenance: Provenance
    steps: pl.DataFrame
    cost: str


def load(path: Path) -> Trace:
    """Return the trace in directory `path`; InputError names the file, column and row of what is wrong.

    A trace that has not changed since it was last loaded is not read again.
    """
    files = [path / name for name in ("trace.json", "requests.parquet", "tokens.parquet", "steps.parquet")]
    if not path.is_dir():
        raise InputError(path, "no such trace; make one with `pearl-sim capture` or `pearl-sim import`")
    if (path / "cost.toml").exists():
        raise InputError(path, "is a profile: it knows times, but not which drafts were accepted; name a trace")
    if not (path / "tokens.parquet").exists() and any((path / f"{n}.parquet").exists() for n in ("rounds", "totals")):
        raise InputError(
            path, "holds counts, not runs, and cannot be replayed; `pearl-sim acceptance` fits a law to it"
        )
    return _load(path, tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files))


def load_steps(path: Path) -> pl.DataFrame:
    """Return the timed steps of a trace or of a profile; InputError as `load`."""
    file, profiled = path / "steps.parquet", path / "cost.toml"
    return _load_steps(file, file.stat().st_mtime_ns) if profiled.exists() and file.exists() else load(path).steps


@lru_cache(maxsize=8)
def _load_steps(file: Path, _changed: int) -> pl.DataFrame:
    return _check_steps(file, read_table(file))


@lru_cache(maxsize=8)
def _load(path: Path, _changed: tuple[int, ...]) -> Trace:
    provenance = provenance_of(path / "trace.json")
    requests, tokens = read_table(path / "requests.parquet"), read_table(path / "tokens.parquet")
    steps = path / "steps.parquet"
    timed = read_table(steps) if steps.exists() else pl.DataFrame(schema=STEPS)
    return check(Trace(path, provenance, requests, tokens, timed))


def save(recorded: Trace | Profile) -> None:
    """Write a trace or profile to its path, all of it or nothing; InputError if it is wrong or the path is taken."""
    tables = {"steps": _check_steps(recorded.path / "steps.parquet", recorded.steps)}
    if isinstance(recorded, Trace):
        checked = check(recorded)
        tables = {"requests": checked.requests, "tokens": checked.tokens} | (tables if len(checked.steps) else {})
    with written_whole(recorded.path, recorded.provenance) as part:
        for name, table in tables.items():
            table.write_parquet(part / f"{name}.parquet")
        if isinstance(recorded, Profile):
            (part / "cost.toml").write_text(recorded.cost, encoding="utf-8")


@contextmanager
def written_whole(path: Path, provenance: Provenance) -> Iterator[Path]:
    """Give a directory that holds trace.json; once filled, it becomes `path`, or nothing does."""
    if path.exists():
        raise InputError(path, "exists already; choose another name or remove it")
    if any(parent.is_file() for parent in path.parents):
        raise InputError(path, "lies below a file, not a directory; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        told = json.dumps(provenance.model_dump(mode="json"), indent=2)
        (part / "trace.json").write_text(told + "\n", encoding="utf-8")
        yield part
        part.chmod(0o755)
        part.replace(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def check(trace: Trace) -> Trace:
    """Return the trace, its columns in order; InputError at the first row that replay could not trust."""
    requests_file, tokens_file = (trace.path / f"{name}.parquet" for name in ("requests", "tokens"))
    requests = columns(requests_file, trace.requests, REQUESTS)
    tokens = columns(tokens_file, trace.tokens, TOKENS | (CENSORED if "censored" in trace.tokens.columns else {}))
    if requests.is_empty():
        raise InputError(requests_file, "the trace has no requests")
    refuse_rows(requests_file, requests, "request", pl.col("request").is_duplicated(), "is used twice")
    refuse_rows(
        requests_file, requests, "prompt_tokens", ~pl.col("prompt_tokens").is_between(0, 10**9), "must be 0 to 10^9"
    )
    refuse_rows(requests_file, requests, "output_tokens", pl.col("output_tokens") < 1, "must be 1 or more")
    refuse_rows(tokens_file, tokens, "run", pl.col("run") < 0, "must be 0 or more")
    limit = trace.provenance.run_limit
    if limit is not None:
        refuse_rows(tokens_file, tokens, "run", pl.col("run") > limit, f"is over the trace's run_limit, {limit}")
    promised = requests["output_tokens"].sum()
    if promised != len(tokens):
        raise InputError(tokens_file, f"has {len(tokens)} rows; requests.parquet promises {promised} output tokens")
    expected = requests.select("request", position=pl.int_ranges(pl.col("output_tokens"))).explode("position")
    for column in ("request", "position"):
        differs = tokens[column] != expected[column]
        refuse_rows(
            tokens_file, tokens, column, differs, "is out of order; rows go by request, then position 0, 1, 2, ..."
        )
    steps = _check_steps(trace.path / "steps.parquet", trace.steps)
    return Trace(trace.path, trace.provenance, requests, tokens, steps)


def _check_steps(file: Path, table: pl.DataFrame) -> pl.DataFrame:
    steps = columns(file, table, STEPS)
    refuse_rows(file, steps, "role", ~pl.col("role").is_in(["draft", "target"]), "must be draft or target")
    refuse_rows(file, steps, "stop_ns", pl.col("stop_ns") <= pl.col("start_ns"), "must be after start_ns")
    for column, least in (("tokens", 1), ("context", 0), ("batch", 1)):
        refuse_rows(file, steps, column, pl.col(column) < least, f"must be {least} or more")
    return steps


def refuse_rows(file: Path, table: pl.DataFrame, column: str, wrong: pl.Expr | pl.Series, problem: str) -> None:
    """Raise InputError at the first row of `table` that is `wrong`."""
    rows = table.with_row_index("row").filter(wrong)
    if len(rows):
        raise InputError(f"{file}: column {column}, row {rows['row'][0]}", f"{rows[column][0]!r} {problem}")


def provenance_of(file: Path) -> Provenance:
    """Return a trace.json, checked; InputError says what is wrong."""
    return Provenance.read(file, read_json(file, SCHEMA_VERSION, "is missing; this directory is not a trace"))


def read_json(file: Path, known: int, missing: str) -> dict[str, Any]:
    """Return a JSON object of schema version 1 to `known`; InputError if it is none, `missing` if there is no file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(file, missing) from None
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(file, f"cannot be read as JSON: {error}") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if type(version) is not int or version < 1:
        raise InputError(file, f"schema_version = {version!r}: must be {known}")
    if version > known:
        raise InputError(
            file, f"schema_version = {version} is newer than this pearl_sim knows ({known}); upgrade pearl_sim"
        )
    found: dict[str, Any] = content
    return found


def read_table(file: Path) -> pl.DataFrame:
    """Return a Parquet table; InputError if it is missing or damaged."""
    try:
        table = pl.read_parquet(file)
    except FileNotFoundError:
        raise InputError(file, "is missing; the trace is not complete") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise InputError(file, f"is damaged: {str(error).splitlines()[0]}") from None
    return table


def columns(file: Path, table: pl.DataFrame, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Return the columns of `schema`; InputError if one is missing, has another type, or lacks a value it needs."""
    for column, dtype in schema.items():
        if column not in table.columns:
            raise InputError(f"{file}: column {column}", f"is missing; the columns are {', '.join(schema)}")
        if table.schema[column] != dtype:
            raise InputError(f"{file}: column {column}", f"has type {table.schema[column]}; must be {dtype.__name__}")
        if column not in NULLABLE:
            refuse_rows(file, table, column, pl.col(column).is_null(), "is not allowed here")
    return table.select(list(schema))
