"""SpecDecode-Bench files become traces that replay exactly, or one line naming file and line."""

import json

import pytest

from pearl_sim.cost import ConstantCost
from pearl_sim.drivers.sim import simulate
from pearl_sim.errors import InputError
from pearl_sim.importers.specdecode_bench import read
from pearl_sim.policies import POLICIES, speculative
from pearl_sim.trace import load, save

RECORD = {
    "id": "7",
    "prompt_token_ids": [1, 2, 3],
    "generated_token_ids": [10, 11, 12, 13, 14],
    "acc_eagle": {"acc_len": [1, 3, 2, 1, 2]},
    "acc_ngram": {"acc_len": [1, 1, 1, 1, 1]},
}


def write(tmp_path, *records):
    file = tmp_path / "bench.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def test_run_is_what_a_step_emits_less_the_targets_own_token(tmp_path):
    save(read(write(tmp_path, RECORD), "eagle", tmp_path / "trace"))
    trace = load(tmp_path / "trace")
    assert trace.tokens["run"].to_list() == [0, 2, 1, 0, 1]
    assert trace.tokens["token"].to_list() == [10, 11, 12, 13, 14]
    assert trace.requests.row(0) == ("7", "bench", 3, 5, None)
    (request,) = trace.workload(None, None)
    assert (request.prompt_tokens, request.limit, request.runs.tolist()) == (3, 5, [0, 2, 1, 0, 1])


def test_acceptance_and_text_of_different_length_are_cut_to_the_shorter_and_it_is_told(tmp_path):
    longer = {**RECORD, "acc_eagle": {"acc_len": [1] * 9}}
    shorter = {**RECORD, "id": "8", "acc_eagle": {"acc_len": [1] * 2}}
    trace = read(write(tmp_path, longer, shorter), "eagle", tmp_path / "trace")
    assert trace.requests["output_tokens"].to_list() == [5, 2]
    assert any("7 trailing positions were left out" in note for note in trace.provenance.notes)


def test_a_pile_up_at_the_longest_run_is_taken_as_the_recorders_limit(tmp_path):
    records = [{**RECORD, "id": str(i), "acc_eagle": {"acc_len": [21, 3, 2, 1, 2]}} for i in range(12)]
    assert read(write(tmp_path, *records), "eagle", tmp_path / "trace").provenance.run_limit == 20
    assert read(write(tmp_path, RECORD), "eagle", tmp_path / "other").provenance.run_limit is None


def test_the_recorders_limit_can_be_stated_but_not_against_the_record(tmp_path):
    assert read(write(tmp_path, RECORD), "eagle", tmp_path / "trace", 5).provenance.run_limit == 5
    with pytest.raises(InputError, match="has a run of 2, over --run-limit 1"):
        read(write(tmp_path, RECORD), "eagle", tmp_path / "trace", 1)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"id": 1', "line 2: is not JSON"),
        ("[1, 2]", "line 2: must be a JSON object"),
        (json.dumps({**RECORD, "acc_eagle": {"acc_len": [1, 0]}}), "line 2: acc_eagle.acc_len: 0 is not possible"),
        (
            json.dumps({**RECORD, "acc_eagle": {"acc_len": [1, "2"]}}),
            "line 2: acc_eagle: acc_len: '2' must be a whole number",
        ),
        (json.dumps({**RECORD, "acc_eagle": {"acc_len": []}}), "line 2: the request has no output positions"),
        (json.dumps({**RECORD, "acc_eagle": 3}), "line 2: has no acc_eagle"),
        (
            json.dumps({key: RECORD[key] for key in RECORD if key != "generated_token_ids"}),
            "line 2: generated_token_ids",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, complaint):
    file = write(tmp_path, RECORD)
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(InputError, match=complaint.replace("(", r"\(")) as error:
        read(file, "eagle", tmp_path / "trace")
    assert str(file) in str(error.value)


def test_an_empty_file_and_an_unknown_proposer_are_refused(tmp_path):
    with pytest.raises(InputError, match="is empty"):
        read(write(tmp_path), "eagle", tmp_path / "trace")
    with pytest.raises(InputError, match="proposers recorded here: eagle, ngram"):
        read(write(tmp_path, RECORD), "medusa", tmp_path / "trace")


def test_blank_lines_crlf_and_a_byte_order_mark_are_fine(tmp_path):
    file = tmp_path / "bench.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(RECORD).encode() + b"\r\n\r\n")
    assert len(read(file, "eagle", tmp_path / "trace").requests) == 1


@pytest.mark.parametrize("dataset", ["gsm8k", "sharegpt"])
def test_the_recorded_h100_files_replay_under_all_five_policies(shared_data, tmp_path, dataset):
    file = shared_data / "llama31_8b_h100" / f"{dataset}.jsonl"
    if not file.exists():
        pytest.skip(f"{file.name} is not on this machine")
    save(read(file, "eagle", tmp_path / dataset))
    requests = load(tmp_path / dataset).workload(40, None)
    cost = ConstantCost(draft="1 ms", target="5 ms")
    for policy_of in POLICIES.values():
        timelines = simulate(policy_of(3), requests, cost.timing(policy_of(3)), 0)
        for timeline, request in zip(timelines, requests, strict=True):
            assert timeline[-1].frontier.verified < max(request.limit, 1) or request.limit == 1
    # Under SD a round emits what the file says a step there emits, at most gamma + 1.
    emitted = {i: json.loads(line)["acc_eagle"]["acc_len"] for i, line in enumerate(file.read_text().splitlines()[:40])}
    for number, timeline in enumerate(simulate(speculative(3), requests, cost.timing(speculative(3)), 0)):
        for step in timeline[1:]:
            if step.round.score:
                assert step.accepted + 1 == min(emitted[number][step.frontier.verified], 4)
