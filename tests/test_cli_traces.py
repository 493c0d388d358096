"""import and acceptance from the command line: what they print, and one line for what is wrong."""

import json
import re

import pytest
from test_cli import pearl_sim

from pearl_sim import acceptance_table, scenario, sweep
from pearl_sim.cli import app
from pearl_sim.errors import InputError
from pearl_sim.importers import csv
from pearl_sim.trace import load, save

TABLE = "request,accepted\n" + "".join(
    f"{request},{accepted}\n" for request in "abc" for accepted in (4, 2, 0, 4, 1, 3) * 5
)


@pytest.fixture
def rounds(tmp_path):
    (tmp_path / "rounds.csv").write_text(TABLE)
    return tmp_path


def test_import_writes_a_trace_and_tells_what_was_inferred(rounds):
    done = pearl_sim("import", "csv", "rounds.csv", "--gamma", "4", "--out", "traces/mine", cwd=rounds)
    assert done.returncode == 0, done.stderr
    assert "wrote traces/mine: 3 requests, 303 output tokens" in done.stdout
    trace = load(rounds / "traces" / "mine")
    assert trace.provenance.command == "pearl-sim import csv rounds.csv --gamma 4 --out mine"
    for note in trace.provenance.notes:
        assert note in done.stdout
    again = pearl_sim("import", "csv", "rounds.csv", "--gamma", "4", "--out", "traces/mine", cwd=rounds)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "exists already" in again.stderr


def test_acceptance_prints_what_a_record_says_and_a_law_for_a_scenario(rounds):
    save(csv.read(rounds / "rounds.csv", rounds / "mine", 4))
    done = pearl_sim("acceptance", "mine", cwd=rounds)
    assert done.returncode == 0, done.stderr
    for told in (
        "3 requests: 95 % intervals",
        "S(depth)",
        "tokens between corrections",
        "at least",
        "autocorrelation",
        "[acceptance]",
    ):
        assert told in done.stdout, told
    answer = json.loads(pearl_sim("acceptance", "mine", "--json", cwd=rounds).stdout)
    shares = [depth["survival"]["mean"] for depth in answer["depths"]]
    assert shares == pytest.approx([5 / 6, 4 / 6, 3 / 6, 2 / 6], abs=0.01)
    assert {law["law"]["law"] for law in answer["laws"]} >= {"iid", "decaying", "beta"}


COST = '[cost]\nmodel = "constant"\ndraft = "1 ms"\ntarget = "5 ms"\n'


def simulated(file, text):
    """Return the rows of a scenario."""
    file.write_text(text)
    return sweep.run(scenario.read(file)).rows.to_dicts()


def test_the_law_printed_is_one_that_a_scenario_takes(rounds):
    save(csv.read(rounds / "rounds.csv", rounds / "mine", 4))
    lines = [str(line) for line in acceptance_table.render(acceptance_table.compute(rounds / "mine"))]
    told = "\n".join(lines).replace("\\[", "[")
    work = '[policy]\nnames = ["pearl"]\ngamma = 4\n[workload]\nrequests = 2\ntokens = 20\n'
    assert len(simulated(rounds / "s.toml", told[told.index("[acceptance]") :] + "\n" + COST + work)) == 1


def test_every_policy_but_the_recorded_one_is_flagged(rounds):
    save(csv.read(rounds / "rounds.csv", rounds / "mine", 4))
    text = '[acceptance]\nlaw = "recorded"\ntrace = "mine"\n' + COST
    text += '[policy]\nnames = ["sd", "pearl"]\n[sweep]\npolicy.gamma = [2, 4]\n'
    told = {(row["policy"], row["gamma"]): row["unknown_rounds"] for row in simulated(rounds / "s.toml", text)}
    assert told["sd", 4] == 0
    assert min(told["pearl", 4], told["sd", 2]) > 0.1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["import", "parquet", "rounds.csv"], "kind = 'parquet': must be one of specdecode-bench, spec-bench"),
        (["import", "csv", "rounds.csv"], "rounds.csv: line 1: nothing says how many tokens a round drafted"),
        (["import", "csv", "rounds.csv", "--gamma", "0"], "--gamma 0: must be 1 or more"),
        (
            ["import", "csv", "rounds.csv", "--gamma", "3"],
            "rounds.csv: line 2: accepted = 4 is more than was drafted, 3",
        ),
        (
            ["import", "csv", "rounds.csv", "rounds.csv", "--gamma", "4"],
            "rounds.csv: is one too many; csv takes one file",
        ),
        (["import", "csv", "missing.csv", "--gamma", "4"], "missing.csv: no such file"),
        (["import", "vllm", "rounds.csv", "--gamma", "4"], "--gamma: changes nothing for vllm; remove it"),
        (["import", "vllm", *["rounds.csv"] * 3], "rounds.csv: is one too many; give metrics before and after"),
        (["import", "vllm", "rounds.csv"], "rounds.csv: has no vllm:spec_decode_num_drafts_total"),
        (["import", "specdecode-bench", "rounds.csv"], "--proposer: is missing"),
        (["import", "spec-bench", "rounds.csv", "--lengths", "all"], "--lengths all: must be emitted or accepted"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_written(rounds, monkeypatch, arguments, complaint):
    monkeypatch.chdir(rounds)
    with pytest.raises(InputError, match=re.escape(complaint)) as error:
        app([*arguments, "--out", "out"], standalone_mode=False)
    assert "\n" not in str(error.value)
    assert [entry.name for entry in rounds.iterdir()] == ["rounds.csv"]


def test_acceptance_of_no_trace_and_of_no_drafts_is_refused(rounds):
    done = pearl_sim("acceptance", "nowhere", cwd=rounds)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    (rounds / "none.csv").write_text("accepted,drafted\n0,0\n0,0\n")
    save(csv.read(rounds / "none.csv", rounds / "none"))
    with pytest.raises(InputError, match="none: no draft was checked"):
        acceptance_table.compute(rounds / "none")
