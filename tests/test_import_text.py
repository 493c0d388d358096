"""Every importer reads its documented sample, however it is packed, and refuses what is broken by file and line."""

import gzip
import json
import re
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pearl_sim import counts, trace
from pearl_sim.acceptance_table import compute
from pearl_sim.cli_traces import KINDS, _reader
from pearl_sim.errors import InputError
from pearl_sim.importers import lines, specdecode_bench
from pearl_sim.importers.lines import numbered
from pearl_sim.importers.recording import Recording, Rounds
from pearl_sim.trace import Trace

DOCS = (Path(__file__).parents[1] / "docs" / "traces.md").read_text(encoding="utf-8")
OPTIONS = {"specdecode-bench": {"proposer": "eagle"}, "spec-bench": {"gamma": 4, "lengths": "emitted"}}


def samples():
    """Return (kind, sample text) for every fenced sample in the documentation."""
    found = []
    for part in DOCS.split("\n### ")[1:]:
        kind = part.partition("\n")[0]
        body = part.partition("\n## ")[0]
        found += [(kind, text) for text in re.findall(r"```(?:jsonl|text|csv)\n(.*?)```", body, re.S)]
    return found


SAMPLES = samples()
IDS = [f"{kind}-{number}" for number, (kind, _) in enumerate(SAMPLES)]
every_sample = pytest.mark.parametrize(("kind", "text"), SAMPLES, ids=IDS)


def bring_in(kind, file, out):
    return _reader(kind, [file], OPTIONS.get(kind, {}))(out)


def saved(found):
    (trace if isinstance(found, Trace) else counts).save(found)
    return found.path


def test_every_kind_has_a_documented_sample():
    assert {kind for kind, _ in SAMPLES} == set(KINDS)
    assert len(SAMPLES) == 8


@every_sample
def test_a_documented_sample_goes_in_and_its_acceptance_is_told(tmp_path, kind, text):
    file = tmp_path / "sample"
    file.write_text(text)
    out = saved(bring_in(kind, file, tmp_path / "out"))
    answer = compute(out)
    json.dumps(answer, allow_nan=False)
    assert answer["notes"], "what was inferred is told"
    assert kind in answer["source"]


@every_sample
@pytest.mark.parametrize("packed", ["gzip", "CRLF", "BOM", "blank lines", "no last newline", "all of it"])
def test_how_a_file_is_packed_changes_nothing(tmp_path, kind, text, packed):
    plain, other = tmp_path / "plain" / "sample", tmp_path / "packed" / "sample"
    for file in (plain, other):
        file.parent.mkdir()
    plain.write_text(text)
    data = text.encode()
    if packed in ("CRLF", "all of it"):
        data = data.replace(b"\n", b"\r\n")
    if packed == "blank lines":
        data = b"\n" + data.replace(b"\n", b"\n \n")
    if packed == "no last newline":
        data = data.rstrip(b"\n")
    if packed in ("BOM", "all of it"):
        data = b"\xef\xbb\xbf" + data
    if packed in ("gzip", "all of it"):
        data = gzip.compress(data)
    other.write_bytes(data)
    one, two = bring_in(kind, plain, tmp_path / "out"), bring_in(kind, other, tmp_path / "out")
    if isinstance(one, Trace):
        # A request without a name is named by its line, which blank lines move.
        assert one.tokens.drop("request").equals(two.tokens.drop("request"))
    else:
        assert one.rounds.drop("request").equals(two.rounds.drop("request"))


@every_sample
@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda data: b"", ": is empty"),
        (lambda data: b"\n \r\n", ": is empty"),
        (lambda data: gzip.compress(data)[:-12], "line [0-9]+: cannot be read"),
        (lambda data: gzip.compress(data)[:20] + b"no deflate" * 9, "line [0-9]+: cannot be read"),
        (lambda data: data + b"\xff\xfe\n", "line [0-9]+: is not UTF-8: byte 0xff"),
        (lambda data: data.decode().encode("utf-16"), "is UTF-16; save it as UTF-8"),
    ],
    ids=["empty", "blank", "cut gzip", "broken gzip", "latin", "utf-16"],
)
def test_a_damaged_file_is_refused_in_one_line_and_nothing_is_written(tmp_path, kind, text, damage, complaint):
    file, out = tmp_path / "sample", tmp_path / "out"
    file.write_bytes(damage(text.encode()))
    with pytest.raises(InputError, match=complaint) as error:
        saved(bring_in(kind, file, out))
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("kind", "text"), [one for one in SAMPLES if one[1].startswith("{")])
@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"id": "cut", "choices": [{"accept', "line 2: is not JSON"),
        ("[1, 2]", "line 2: must be a JSON object"),
        ("[" * 100_000, "line 2: is not JSON"),
        ('{"nothing": "known"}', "line 2"),
    ],
)
def test_a_truncated_or_foreign_json_line_is_named(tmp_path, kind, text, line, complaint):
    file = tmp_path / "sample"
    file.write_text(text + line)
    with pytest.raises(InputError, match=complaint):
        bring_in(kind, file, tmp_path / "out")


def test_a_missing_file_a_directory_and_an_endless_line_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no such file"):
        list(numbered(tmp_path / "missing"))
    with pytest.raises(InputError, match="must be a regular file"):
        list(numbered(tmp_path))
    monkeypatch.setattr(lines, "LONGEST", 1 << 20)
    (tmp_path / "long").write_bytes(b"short\n" + b"x" * (1 << 21))
    with pytest.raises(InputError, match=r"long: line 2: is longer than 1 MiB"):
        list(numbered(tmp_path / "long"))


def made_up(line, size):
    """Return what opens a made-up file of so many bytes: one line, again and again."""
    left = [size // len(line)]

    def readline(limit):
        left[0] -= 1
        return line if left[0] >= 0 else b""

    return lambda _: nullcontext(SimpleNamespace(readline=readline))


def test_a_gigabyte_is_read_in_the_memory_of_a_line(tmp_path, monkeypatch):
    """Lines of 256 KiB, a gigabyte of them: what is held at any time is one line, not the file."""
    file = tmp_path / "large"
    file.write_bytes(b"x\n")
    monkeypatch.setattr(lines, "_opened", made_up(b"y" * (1 << 18) + b"\n", 1 << 30))
    tracemalloc.start()
    count = sum(1 for _ in numbered(file))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 4095
    assert peak < 4 << 20


def test_an_importer_keeps_a_few_bytes_of_each_position(tmp_path, monkeypatch):
    """A long recording as the importer holds it while reading: 8 bytes a run, 8 a token, however long the text is."""
    file = tmp_path / "large"
    file.write_bytes(b"x\n")
    length, requests = 2000, 60
    record = {"prompt_token_ids": [1], "generated_token_ids": [7] * length, "acc_eagle": {"acc_len": [2] * length}}
    block = (json.dumps(record) + "\n").encode()
    monkeypatch.setattr(lines, "_opened", made_up(block, len(block) * requests))
    held = []
    monkeypatch.setattr(
        Recording, "trace", lambda self, *_: held.append((len(self.runs), tracemalloc.get_traced_memory()[0]))
    )
    tracemalloc.start()
    specdecode_bench.read(file, "eagle", tmp_path / "out")
    tracemalloc.stop()
    ((positions, size),) = held
    assert positions == length * requests
    assert size / positions < 24


def test_runs_at_every_position_come_from_rounds():
    runs, censored = Rounds([3, 3, 3], [1, 3, 0]).runs()
    assert runs.tolist() == [0, 1, 0, 3, 2, 1, 0, 0]
    assert censored.tolist() == [False, False, False, True, True, True, True, False]
    _, cut = Rounds([3, 3, 3], [1, 3, 0]).runs(cut_short=True)
    assert cut.tolist() == [*censored.tolist()[:-1], True]
    runs, censored = Rounds([], []).runs(cut_short=True)
    assert (runs.tolist(), censored.tolist()) == ([0], [False])
    assert runs.dtype == np.int64
