"""The trace on disk: what is saved is loaded, what is damaged is refused by name, what fails leaves nothing behind."""

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from small_trace import requests_table, small_trace, steps_table, tokens_table

from pearl_sim.errors import InputError
from pearl_sim.trace import STEPS, Provenance, load, save


@pytest.fixture
def saved(tmp_path):
    """Return where a right trace lies on disk."""
    save(small_trace(tmp_path / "trace"))
    return tmp_path / "trace"


def edit(path, change):
    """Rewrite one column or more of a table."""
    change(pl.read_parquet(path)).write_parquet(path)


def at(column, row, value):
    """Return a change that puts `value` at a row of a column."""

    def change(table):
        values = table[column].to_list()
        values[row] = value
        return table.with_columns(pl.Series(column, values, dtype=table.schema[column]))

    return change


def edit_json(path, **change):
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_what_is_saved_is_what_is_loaded(tmp_path):
    trace = small_trace(tmp_path / "deep" / "trace")
    save(trace)
    back = load(trace.path)
    assert back.provenance == trace.provenance
    for name in ("requests", "tokens", "steps"):
        assert_frame_equal(getattr(back, name), getattr(trace, name))
    assert list(trace.path.parent.iterdir()) == [trace.path]
    assert sorted(file.name for file in trace.path.iterdir()) == [
        *["requests.parquet", "steps.parquet", "tokens.parquet", "trace.json"]
    ]


def test_a_trace_without_steps_has_no_steps_file(tmp_path):
    save(small_trace(tmp_path / "trace", steps=pl.DataFrame(schema=STEPS)))
    assert not (tmp_path / "trace" / "steps.parquet").exists()
    assert load(tmp_path / "trace").steps.is_empty()


@pytest.mark.parametrize("limit", [9, None])
def test_a_run_is_censored_where_the_trace_says_so_else_at_its_limit(tmp_path, limit):
    provenance = Provenance(source="test", created="2026-01-01", command="none", run_limit=limit)
    plain = small_trace(tmp_path / "plain", provenance=provenance)
    save(plain)
    found = load(plain.path).censored(None)
    assert found is None if limit is None else [cut.tolist() for cut in found] == [[False] * 3 + [True], [False] * 2]
    marks = pl.Series("censored", [False, True, False, False, True, False])
    marked = small_trace(tmp_path / "marked", provenance=provenance, tokens=tokens_table().with_columns(marks))
    save(marked)
    back = load(marked.path)
    assert [cut.tolist() for cut in back.censored(None)] == [[False, True, False, False], [True, False]]
    assert [cut.tolist() for cut in back.censored(1)] == [[False, True, False, False]]
    assert back.tokens["censored"].to_list() == marks.to_list()


@pytest.mark.parametrize("wrong", [pl.Series("censored", [1] * 6), pl.Series("censored", [True] * 5 + [None])])
def test_a_censored_column_that_cannot_be_trusted_is_refused(saved, wrong):
    edit(saved / "tokens.parquet", lambda table: table.with_columns(wrong))
    with pytest.raises(InputError, match="column censored"):
        load(saved)


def test_columns_may_come_in_another_order_and_unknown_ones_are_left_out(saved):
    edit(saved / "tokens.parquet", lambda table: table.select(sorted(table.columns)).with_columns(more=1))
    assert_frame_equal(load(saved).tokens, tokens_table())


def test_a_trace_that_changed_on_disk_is_read_again(saved):
    assert load(saved).tokens["run"][0] == 2
    edit(saved / "tokens.parquet", at("run", 0, 5))
    assert load(saved).tokens["run"][0] == 5


def test_replay_gives_each_request_its_own_runs_and_cuts_to_count_and_limit(saved):
    trace = load(saved)
    first, second = trace.workload(None, None)
    assert (first.prompt_tokens, first.limit, first.runs.tolist()) == (7, 4, [2, 1, 0, 9])
    assert (second.prompt_tokens, second.limit, second.runs.tolist()) == (0, 2, [0, 3])
    assert [request.limit for request in trace.workload(None, 3)] == [3, 2]
    assert trace.workload(None, 3)[1].runs.tolist() == [0, 3]
    assert len(trace.workload(1, None)) == 1
    assert len(trace.workload(9, None)) == 2
    assert trace.workload(1, 3)[0].runs.tolist()[:3] == [2, 1, 0]


def test_no_such_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such trace"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["trace.json", "requests.parquet", "tokens.parquet"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(InputError, match=f"{name}: is missing"):
        load(saved)


@pytest.mark.parametrize("name", ["requests.parquet", "tokens.parquet", "steps.parquet"])
def test_a_truncated_table_is_named(saved, name):
    content = (saved / name).read_bytes()
    for length in (0, 3, 4, 8, len(content) // 2, len(content) - 8, len(content) - 1):
        (saved / name).write_bytes(content[:length])
        with pytest.raises(InputError, match=f"{name}: is damaged"):
            load(saved)


def test_a_damaged_byte_anywhere_is_never_worse_than_an_input_error(saved):
    """Polars panics on some of these; that must not reach the user as a Rust backtrace."""
    content = (saved / "steps.parquet").read_bytes()
    for byte in range(0, len(content), 9):
        (saved / "steps.parquet").write_bytes(content[:byte] + bytes([content[byte] ^ 0xFF]) + content[byte + 1 :])
        try:
            load(saved)
        except InputError as error:
            assert "steps.parquet" in str(error)


def wrong_type(column, dtype):
    return lambda table: table.with_columns(pl.col(column).cast(dtype))


def drop(column):
    return lambda table: table.drop(column)


DAMAGE = {
    "missing column": ("tokens", drop("run"), "column run: is missing"),
    "missing column of requests": ("requests", drop("prompt_tokens"), "column prompt_tokens: is missing"),
    "missing column of steps": ("steps", drop("overlapped"), "column overlapped: is missing"),
    "wrong type": ("tokens", wrong_type("run", pl.Int32), "column run: has type Int32; must be Int64"),
    "float runs": ("tokens", wrong_type("run", pl.Float64), "column run: has type Float64; must be Int64"),
    "wrong type of requests": ("requests", wrong_type("output_tokens", pl.String), "column output_tokens: has type"),
    "null run": ("tokens", at("run", 2, None), "column run, row 2: None"),
    "null request": ("requests", at("request", 1, None), "column request, row 1: None"),
    "null role": ("steps", at("role", 1, None), "column role, row 1: None"),
    "negative run": ("tokens", at("run", 1, -1), "column run, row 1: -1 must be 0 or more"),
    "run over the recorder's limit": ("tokens", at("run", 3, 10), "column run, row 3: 10 is over"),
    "duplicate request": ("requests", at("request", 1, "first"), "column request, row 0: 'first' is used twice"),
    "negative prompt": ("requests", at("prompt_tokens", 1, -1), "column prompt_tokens, row 1: -1"),
    "empty output": ("requests", at("output_tokens", 1, 0), "column output_tokens, row 1: 0"),
    "unknown request": ("tokens", at("request", 4, "third"), "column request, row 4: 'third' is out of order"),
    "swapped positions": (
        "tokens",
        lambda table: at("position", 1, 2)(at("position", 2, 1)(table)),
        "column position, row 1: 2 is out of order",
    ),
    "repeated position": ("tokens", at("position", 1, 0), "column position, row 1: 0 is out of order"),
    "swapped requests": ("tokens", lambda table: pl.concat([table[4:], table[:4]]), "column request, row 0"),
    "too few rows": ("tokens", lambda table: table[:-1], "has 5 rows; requests.parquet promises 6"),
    "too many rows": ("tokens", lambda table: pl.concat([table, table[-1:]]), "has 7 rows; requests.parquet promises"),
    "no requests": ("requests", lambda table: table[:0], "the trace has no requests"),
    "unknown role": ("steps", at("role", 1, "judge"), "column role, row 1: 'judge' must be draft or target"),
    "stop before start": ("steps", at("stop_ns", 1, 999), "column stop_ns, row 1: 999 must be after start_ns"),
    "stop at start": ("steps", at("stop_ns", 1, 1000), "column stop_ns, row 1: 1000 must be after start_ns"),
    "step of no tokens": ("steps", at("tokens", 0, 0), "column tokens, row 0: 0 must be 1 or more"),
    "negative context": ("steps", at("context", 0, -1), "column context, row 0: -1 must be 0 or more"),
    "no batch": ("steps", at("batch", 0, 0), "column batch, row 0: 0 must be 1 or more"),
}


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_damage_is_refused_with_file_column_and_row(saved, damage):
    table, change, problem = DAMAGE[damage]
    edit(saved / f"{table}.parquet", change)
    with pytest.raises(InputError) as caught:
        load(saved)
    assert f"{table}.parquet: {problem}" in str(caught.value)


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_what_load_would_refuse_is_not_saved(tmp_path, damage):
    table, change, problem = DAMAGE[damage]
    right = {"requests": requests_table, "tokens": tokens_table, "steps": steps_table}[table]()
    with pytest.raises(InputError) as caught:
        save(small_trace(tmp_path / "trace", **{table: change(right)}))
    assert f"{table}.parquet: {problem}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "cannot be read as JSON"),
        ("", "cannot be read as JSON"),
        ("[]", "schema_version"),
        ("null", "schema_version"),
        ("{}", "schema_version"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
    ids=lambda text: text[:12],
)
def test_broken_json_is_refused(saved, content, problem):
    (saved / "trace.json").write_text(content)
    with pytest.raises(InputError, match=rf"trace\.json: {problem}"):
        load(saved)


def test_json_that_is_no_text_is_refused(saved):
    (saved / "trace.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match=r"trace\.json: cannot be read as JSON"):
        load(saved)


def test_a_newer_schema_is_refused_and_says_what_to_do(saved):
    edit_json(saved / "trace.json", schema_version=2)
    with pytest.raises(InputError, match=r"trace\.json: schema_version = 2 is newer.*upgrade"):
        load(saved)


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, None, True], ids=repr)
def test_a_version_that_is_none_is_refused(saved, version):
    edit_json(saved / "trace.json", schema_version=version)
    with pytest.raises(InputError, match=r"trace\.json: schema_version"):
        load(saved)


def test_an_unknown_key_of_the_provenance_is_named(saved):
    edit_json(saved / "trace.json", colour="red")
    with pytest.raises(InputError, match=r"trace\.json: .*colour"):
        load(saved)


def test_a_wrong_value_of_the_provenance_is_named(saved):
    edit_json(saved / "trace.json", draft={"id": 5})
    with pytest.raises(InputError, match=r"trace\.json: draft\.id"):
        load(saved)


def test_a_taken_path_is_refused_and_left_alone(saved):
    before = (saved / "trace.json").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        save(small_trace(saved, provenance=Provenance(source="other", created="", command="")))
    assert (saved / "trace.json").read_bytes() == before


@pytest.mark.parametrize(
    "failure", [OSError("disk full"), KeyboardInterrupt()], ids=lambda failure: type(failure).__name__
)
def test_a_save_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, failure):
    written = []

    def fail_at_the_second(self, path, *_):
        written.append(path)
        if len(written) > 1:
            raise failure
        path.write_bytes(b"half")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fail_at_the_second)
    with pytest.raises(type(failure)):
        save(small_trace(tmp_path / "trace"))
    assert len(written) == 2
    assert list(tmp_path.iterdir()) == []
