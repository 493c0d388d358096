"""What vLLM and llama.cpp tell becomes counts or a trace, never more than was recorded."""

import json

import polars as pl
import pytest

from pearl_sim import counts, trace
from pearl_sim.acceptance_table import compute
from pearl_sim.errors import InputError
from pearl_sim.importers import llama_cpp, vllm


def metrics(drafts, positions, drafted=None, accepted=None, model="m", engine="0", more=""):
    """Return the Prometheus text of a server, as vLLM writes it."""
    labels = f'engine="{engine}",model_name="{model}"'
    drafted = drafts * len(positions) if drafted is None else drafted
    accepted = sum(positions) if accepted is None else accepted
    lines = [
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts_total{{{labels}}} {float(drafts)}",
        f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e+09",
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {float(drafted)}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {float(accepted)}",
    ]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{{labels},position="{at}"}} {value:e}' for at, value in enumerate(positions)]
    return "\n".join(lines) + "\n" + more


def files(tmp_path, *texts):
    made = [tmp_path / f"file{number}" for number in range(len(texts))]
    for file, text in zip(made, texts, strict=True):
        file.write_text(text)
    return made


def rows(found):
    return found.rounds.drop("request").rows()


def test_counters_by_position_say_how_many_rounds_accepted_how_many(tmp_path):
    found = vllm.read(files(tmp_path, metrics(1000, [800, 500, 300])), tmp_path / "out")
    assert rows(found) == [(3, 0, 200), (3, 1, 300), (3, 2, 200), (3, 3, 300)]
    assert "since the server started" in " ".join(found.provenance.notes)
    counts.save(found)
    back = counts.load(tmp_path / "out")
    assert (back.provenance, back.alike) == (found.provenance, True)
    assert back.rounds.equals(found.rounds)
    answer = compute(tmp_path / "out")
    assert [depth["conditional"]["mean"] for depth in answer["depths"]] == pytest.approx([0.8, 0.625, 0.6])
    assert [depth["survival"]["mean"] for depth in answer["depths"]] == pytest.approx([0.8, 0.5, 0.3])
    assert answer["depths"][2]["tokens_per_forward"]["mean"] == pytest.approx(1 + 1600 / 1000)
    assert answer["open_end"]
    assert answer["autocorrelation"]["mean"] is None
    assert answer["dispersion"]["mean"] is None


def test_the_difference_of_two_scrapes_is_what_happened_in_between(tmp_path):
    both = files(tmp_path, metrics(1000, [800, 500]), metrics(1600, [1200, 700]))
    assert rows(vllm.read(both, tmp_path / "out")) == [(2, 0, 200), (2, 1, 200), (2, 2, 200)]
    with pytest.raises(InputError, match="went down since file1: other order, or a restart"):
        vllm.read(both[::-1], tmp_path / "out")
    with pytest.raises(InputError, match="counts no rounds of speculative decoding in between"):
        vllm.read([both[0], both[0]], tmp_path / "out")


def test_engines_are_added_up_and_models_are_not(tmp_path):
    two = metrics(10, [8, 5]) + metrics(20, [10, 5], engine="1")
    assert rows(vllm.read(files(tmp_path, two), tmp_path / "out")) == [(2, 0, 12), (2, 1, 8), (2, 2, 10)]
    with pytest.raises(InputError, match=r"about several models \(m, n\)"):
        vllm.read(files(tmp_path, two + metrics(20, [10, 5], model="n")), tmp_path / "out")
    with pytest.raises(InputError, match="is about model 'n', file0 about 'm'"):
        vllm.read(files(tmp_path, metrics(1, [1]), metrics(2, [1], model="n")), tmp_path / "out")


def test_drafts_of_varying_length_are_refused_and_nearly_even_ones_noted(tmp_path):
    with pytest.raises(InputError, match=r"rounds drafted 2.50 tokens of 3 on average"):
        vllm.read(files(tmp_path, metrics(1000, [800, 500, 300], drafted=2500)), tmp_path / "out")
    found = vllm.read(files(tmp_path, metrics(1000, [800, 500, 300], drafted=2990)), tmp_path / "out")
    assert "10 of 3000 places in drafts stayed empty" in " ".join(found.provenance.notes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (metrics(100, [80, 90]), "90 tokens accepted at position 1, more than 80 tokens accepted at position 0"),
        (metrics(100, [120, 90]), "120 tokens accepted at position 0, more than 100 rounds"),
        (metrics(100, [80, 50], drafted=100), "accepted_tokens = 130 is more than draft_tokens = 100"),
        (metrics(100, [80, 50], accepted=200), "add up to 130, not accepted_tokens = 200"),
        (metrics(100, [-1, 50]), "line 7: accepted_tokens_per_pos: -1 must be 0 or more"),
        (metrics(100.5, [80, 50]), "line 3: drafts: '100.5' must be a whole number"),
        (metrics(100, [80]) * 2, "line 10: drafts is there twice"),
        (metrics(100, [80]).replace("100.0", "NaN", 1), "line 3: drafts: 'NaN' must be a whole number"),
        (metrics(100, [80]).replace("100.0", "", 1), "line 3: is not a sample of a spec_decode counter"),
        (
            metrics(100, [80, 50]).replace('position="0"', 'position="2"'),
            r"at the positions \[1, 2\]; some are missing",
        ),
        (
            metrics(100, [80]).replace(',position="0"', ""),
            "line 7: position = '' is not what accepted_tokens_per_pos has",
        ),
        ("http_requests_total 7\n", "has no vllm:spec_decode_num_drafts_total"),
        (metrics(0, [0, 0]), "counts no rounds"),
    ],
)
def test_bad_counters_are_named(tmp_path, text, complaint):
    with pytest.raises(InputError, match=complaint):
        vllm.read(files(tmp_path, text), tmp_path / "out")


def response(told, **more):
    return json.dumps({"choices": [], "metrics": {"speculative_decoding": told}} | more) + "\n"


def test_detailed_responses_make_a_trace(tmp_path):
    text = response({"per_step_drafted": [3, 3, 2], "per_step_accepted": [3, 1, 0]}, id="a", usage={"prompt_tokens": 9})
    text += response(None, id="b") + response({"per_step_drafted": [3], "per_step_accepted": [2]}, id="c")
    found = vllm.read(files(tmp_path, text), tmp_path / "out")
    assert found.requests.select("request", "prompt_tokens", "output_tokens").rows() == [("a", 9, 8), ("c", 0, 4)]
    assert found.tokens["run"].to_list() == [0, 3, 2, 1, 0, 1, 0, 0, 0, 2, 1, 0]
    assert found.tokens["censored"].to_list()[1:8] == [True] * 4 + [False] * 2 + [True]
    assert found.provenance.run_limit == 3
    assert "1 responses without" in " ".join(found.provenance.notes)
    trace.save(found)


def test_summaries_make_counts_a_row_a_request_draft_length_and_outcome(tmp_path):
    text = response({"acceptance_histogram_by_draft_length": {"3": [4, 1, 0, 2], "1": [0, 5]}}, id="a")
    text += response({"acceptance_histogram": [3, 1], "num_spec_tokens": 1, "num_draft_tokens": 4}, id="b")
    found = vllm.read(files(tmp_path, text), tmp_path / "out")
    assert found.rounds.rows() == [
        ("a", 3, 0, 4),
        ("a", 3, 1, 1),
        ("a", 3, 3, 2),
        ("a", 1, 1, 5),
        ("b", 1, 0, 3),
        ("b", 1, 1, 1),
    ]
    counts.save(found)
    depths = compute(tmp_path / "out")["depths"]
    assert [(depth["checked"], depth["accepted"]) for depth in depths] == [(16, 9), (3, 2), (2, 2)]
    with pytest.raises(InputError, match="holds counts, not runs, and cannot be replayed"):
        trace.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"per_step_drafted": [3], "per_step_accepted": [4]}, r"per_step_accepted\[0\]: 4 is more than was drafted, 3"),
        ({"per_step_drafted": [3, 3], "per_step_accepted": [1]}, "per_step_drafted has 2 rounds, per_step_accepted 1"),
        ({"per_step_drafted": [3], "per_step_accepted": [-1]}, "per_step_accepted: -1 must be 0 or more"),
        ({"per_step_accepted": [1]}, "per_step_drafted: is missing"),
        ({"acceptance_histogram_by_draft_length": {"1": [1, 2, 3]}}, "accepts more than 1 drafted tokens"),
        ({"acceptance_histogram_by_draft_length": {"x": [1]}}, "must map draft lengths to lists"),
        ({"acceptance_histogram": [3, 1], "num_spec_tokens": 1, "num_draft_tokens": 3}, "does not tell which drafts"),
        ({}, "num_spec_tokens: is missing|acceptance_histogram: is missing"),
        (None, "has no round in metrics.speculative_decoding"),
    ],
)
def test_bad_responses_are_named(tmp_path, told, complaint):
    with pytest.raises(InputError, match=complaint) as error:
        vllm.read(files(tmp_path, response(told)), tmp_path / "out")
    assert told is None or "file0: line 1" in str(error.value)


LOG = """\
slot launch_slot_: id  0 | task 0 | processing task
slot update_slots: id  0 | task 0 | accepted 2/4 draft tokens, new n_tokens = 31
slot update_slots: id  1 | task 5 | accepted  0/ 4 draft tokens, new n_tokens = 11
slot update_slots: id  0 | task 0 | accepted 4/4 draft tokens, new n_tokens = 36
slot print_timing: id  0 | task 0 |
prompt eval time =      60.00 ms /    20 tokens (    3.00 ms per token,   333.33 tokens per second)
       eval time =     150.00 ms /    10 tokens (   15.00 ms per token,    66.67 tokens per second)
      total time =     210.00 ms /    30 tokens
draft acceptance rate = 0.75000 (    6 accepted /     8 generated)
"""
EXAMPLE = """\
encoded   14 tokens in    0.500 seconds, speed:   28.000 t/s
decoded  101 tokens in    2.000 seconds, speed:   50.500 t/s

n_draft   = 8
n_predict = 101
n_drafted = 120
n_accept  = 60
accept    = 50.000%
"""


def test_a_line_a_round_makes_a_trace(tmp_path):
    (file,) = files(tmp_path, LOG)
    found = llama_cpp.read(file, tmp_path / "out")
    assert found.requests["request"].to_list() == ["task 0", "task 5"]
    assert found.tokens["run"].to_list() == [0, 2, 1, 0, 4, 3, 2, 1, 0, 0, 0]
    assert found.provenance.run_limit == 4
    trace.save(found)


def test_sums_make_counts_that_tell_a_mean_and_no_law(tmp_path):
    (file,) = files(tmp_path, "".join(line for line in LOG.splitlines(True) if "draft tokens" not in line))
    found = llama_cpp.read(file, tmp_path / "out")
    assert (rows(found), found.alike) == ([(8, 6, 3)], False)
    assert "50.000 ms a round" in " ".join(found.provenance.notes)
    counts.save(found)
    answer = compute(tmp_path / "out")
    assert answer["tokens_per_forward"]["mean"] == pytest.approx(3)
    assert answer["draft_acceptance"]["mean"] == pytest.approx(0.75)
    assert "laws" not in answer


def test_current_servers_say_acceptance_with_its_mean_length(tmp_path):
    slot = "slot print_timing: id  0 | task 0 | "
    told = "draft acceptance = 0.84783 (   39 accepted /    46 generated), mean len =  2.70"
    (file,) = files(tmp_path, f"{slot}       eval time = 900.0 ms /    63 tokens (x)\n{slot}{told}\n")
    assert rows(llama_cpp.read(file, tmp_path / "out")) == [(46, 39, 23)]


def test_the_examples_sums_and_the_servers_timings(tmp_path):
    example, timings = files(
        tmp_path,
        EXAMPLE,
        json.dumps(
            {"id": "x", "timings": {"predicted_n": 101, "predicted_ms": 800, "draft_n": 120, "draft_n_accepted": 60}}
        )
        + "\n"
        + json.dumps({"id": "y", "timings": {"predicted_n": 5, "predicted_ms": 80}}),
    )
    assert (
        rows(llama_cpp.read(example, tmp_path / "out"))
        == rows(llama_cpp.read(timings, tmp_path / "out"))
        == [(120, 60, 40)]
    )
    assert "50.000 ms a round" in " ".join(llama_cpp.read(example, tmp_path / "out").provenance.notes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("main: load the model\n", "tells of no drafted tokens"),
        (EXAMPLE.replace("n_accept  = 60", "n_accept  = 130"), "line 7: 130 accepted is more than was drafted, 120"),
        (EXAMPLE.replace("n_accept  = 60", "n_accept  = -6"), "line 7: n_accept: -6 must be 0 or more"),
        (EXAMPLE.replace("n_predict = 101", "n_predict = 50"), "line 7: 60 accepted tokens cannot be in a text of 50"),
        (EXAMPLE.replace("n_accept  = 60\n", ""), "ends before n_accept"),
        (LOG.replace("accepted 2/4", "accepted 5/4"), "line 2: 5 accepted is more than was drafted, 4"),
        (LOG.replace("accepted 2/4", "accepted -2/4"), "line 2: -2 must be 0 or more"),
        (
            LOG + "slot update: restoring speculative checkpoint (pos_min = 1)\n",
            "line 10: this run scored accepted tokens twice",
        ),
        ("draft acceptance rate = 0.5 (    6 accepted /     8 generated)\n", "line 1: no eval time"),
        ('{"id": 1}\n', "line 1: timings: is missing"),
        ('{"timings": {"predicted_n": 5}}\n', "tells of no drafted tokens"),
        ('{"timings": {"predicted_n": 5, "draft_n": 4}}\n', "line 1: timings.draft_n_accepted: is missing"),
        (
            '{"timings": {"predicted_n": 9, "draft_n": 4, "draft_n_accepted": 5}}\n',
            "line 1: timings: 5 accepted is more",
        ),
    ],
)
def test_bad_logs_are_named(tmp_path, text, complaint):
    (file,) = files(tmp_path, text)
    with pytest.raises(InputError, match=complaint) as error:
        llama_cpp.read(file, tmp_path / "out")
    assert "file0" in str(error.value)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"rounds": [-1]}, "column rounds, row 0: -1 must be 0 or more"),
        ({"accepted": [5]}, "column accepted, row 0: 5 is more than was drafted"),
        ({"request": [None]}, "column request, row 0"),
        ({"drafted": ["3"]}, "column drafted: has type String"),
    ],
)
def test_damaged_counts_are_refused(tmp_path, damage, complaint):
    found = vllm.read(files(tmp_path, metrics(10, [8])), tmp_path / "out")
    counts.save(found)
    table = {"request": ["a"], "drafted": [3], "accepted": [2], "rounds": [7]} | damage
    pl.DataFrame(table, schema_overrides={"request": pl.String}).write_parquet(tmp_path / "out" / "rounds.parquet")
    with pytest.raises(InputError, match=complaint):
        counts.load(tmp_path / "out")
    (tmp_path / "out" / "trace.json").unlink()
    with pytest.raises(InputError, match=r"trace\.json: is missing"):
        counts.load(tmp_path / "out")
