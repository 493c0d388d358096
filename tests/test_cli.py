"""The command line: what it prints, what it writes, and how it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from pearl_sim.cli import main; main()"]
NOTE = str(ROOT / "scenarios" / "reading_note.toml")
ONE = ["--set", "acceptance.alpha=0.9"]
QUICK = ["--set", "workload.requests=2", "--set", "workload.tokens=40"]


def pearl_sim(*arguments, cwd):
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_simulate_writes_tables_and_figures_and_prints_a_table(tmp_path):
    done = pearl_sim("simulate", NOTE, *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "results" / "reading_note"
    assert {file.name for file in out.iterdir()} == {
        "run.json", "results.parquet", "acceptance_by_depth.parquet", "figure.png", "figure.html",
    }  # fmt: skip
    rows = pl.read_parquet(out / "results.parquet")
    assert rows.columns[:3] == ["policy", "gamma", "acceptance.alpha"]
    assert len(rows) == 40
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    html = (out / "figure.html").read_text()
    assert "<script src=" not in html, "the figure must open offline"
    assert "pearl" in done.stdout
    assert "reading_note: simulated by kernel, wrote results/reading_note" in done.stderr
    assert [entry.name for entry in (tmp_path / "results").iterdir()] == ["reading_note"], "nothing temporary stays"


def test_json_is_all_of_stdout(tmp_path):
    done = pearl_sim("simulate", NOTE, *QUICK, "--json", *ONE, cwd=tmp_path)
    (answer,) = json.loads(done.stdout)
    assert answer["scenario"] == "reading_note"
    assert answer["driver"] == "kernel"
    assert {row["policy"] for row in answer["results"]} == {"sd", "pearl"}
    assert answer["acceptance_by_depth"][0]["depth"] == 1


def test_a_driver_can_be_forced_and_gives_the_same_numbers(tmp_path):
    told = {}
    for driver in ("sim", "kernel"):
        done = pearl_sim("simulate", NOTE, *QUICK, *ONE, "--json", "--driver", driver, cwd=tmp_path)
        (told[driver],) = json.loads(done.stdout)
        assert told[driver].pop("driver") == driver
    assert told["sim"] == told["kernel"]


def test_the_same_seed_gives_the_same_results_and_another_does_not(tmp_path):
    first, again, other = (
        pearl_sim("simulate", NOTE, *QUICK, *ONE, "--json", "--seed", seed, cwd=tmp_path).stdout
        for seed in ("5", "5", "6")
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["simulate", "gone.toml"], "gone.toml: no such scenario file"),
        (["simulate", NOTE, NOTE], "reading_note: is the name of two"),
        (["simulate", NOTE, "--set", "policy.gamma"], "--set policy.gamma: must be KEY=VALUE"),
        (["simulate", NOTE, "--set", "policy.gamma=-3"], "policy.gamma = -3"),
        (["simulate", NOTE, "--seed", "-3"], "workload.seed = -3"),
        (["simulate", NOTE, "--driver", "warp"], "--driver warp: must be sim or kernel"),
        (["simulate", NOTE, "--workers", "0"], "--workers 0: must be 1 or more"),
        (
            ["theory", "--alpha", "2", "--gamma", "4", "--t-draft", "1ms", "--t-target", "9ms"],
            "alpha = 2.0: must be less",
        ),
        (["theory", "--alpha", ".5", "--gamma", "0", "--t-draft", "1ms", "--t-target", "9ms"], "gamma = 0: must be"),
        (
            ["theory", "--alpha", ".5", "--gamma", "4", "--t-draft", "1", "--t-target", "9ms"],
            "t_draft = '1': not a duration",
        ),
        (["report", "gone"], "gone: holds no results; make some with `pearl-sim simulate`"),
        (["import", "tea-leaves", "x", "--proposer", "p", "--out", "t"], "kind = 'tea-leaves': must be"),
        (["import", "specdecode-bench", "gone.jsonl", "--proposer", "p", "--out", "t"], "gone.jsonl: no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_with_nothing_written(tmp_path, arguments, complaint):
    done = pearl_sim(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_something_else_is_not_replaced(tmp_path):
    precious = tmp_path / "results" / "reading_note" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    done = pearl_sim("simulate", NOTE, *QUICK, cwd=tmp_path)
    assert done.returncode == 2
    assert "holds no earlier results" in done.stderr
    assert precious.read_text() == "years of work"


def test_interrupted_run_keeps_what_is_finished_and_goes_on_from_there(tmp_path):
    small = tmp_path / "small.toml"
    small.write_text((ROOT / "scenarios" / "reading_note.toml").read_text().replace("tokens = 2000", "tokens = 20"))
    long = ["simulate", str(small), NOTE, "--set", "workload.requests=400"]
    # What is started by a test in the background would ignore Ctrl-C.
    heeding = [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler); {COMMAND[-1]}"]
    run = subprocess.Popen([*heeding, *long], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(600):
        if list((tmp_path / "results").glob(".reading_note.partitions-*/*.parquet")):
            break
        time.sleep(0.1)
    os.kill(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted; 1 of 2 scenarios" in errors
    assert {entry.name.split("-")[0] for entry in (tmp_path / "results").iterdir()} == {
        "small", ".reading_note.partitions",
    }  # fmt: skip
    again = pearl_sim(*long, cwd=tmp_path)
    assert "small: nothing has changed since results/small was written" in again.stderr
    assert "wrote results/reading_note" in again.stderr
    assert {entry.name for entry in (tmp_path / "results").iterdir()} == {"small", "reading_note"}


def test_json_has_no_infinity_and_a_title_is_not_markup(tmp_path):
    text = (ROOT / "scenarios" / "reading_note.toml").read_text().replace('title = "', 'title = "[red]x[/nope] ')
    (tmp_path / "odd.toml").write_text(text)
    at_one = ["--set", "acceptance.alpha=1.0"]

    def refuse(constant):
        raise AssertionError(constant)

    (answer,) = json.loads(
        pearl_sim("simulate", "odd.toml", *QUICK, *at_one, "--json", cwd=tmp_path).stdout, parse_constant=refuse
    )
    assert answer["results"][1]["note_tokens_per_t_draft"] is None
    assert "[red]x[/nope]" in pearl_sim("simulate", "odd.toml", *QUICK, *at_one, cwd=tmp_path).stdout


def test_theory_searches_gamma_as_far_as_the_target_is_slow(tmp_path):
    setting = ["--alpha", ".9", "--gamma", "4", "--t-draft", "1 ms", "--t-target", "100 ms"]
    answer = json.loads(pearl_sim("theory", *setting, "--json", cwd=tmp_path).stdout)
    assert {row["policy"]: row["best_gamma"] for row in answer["policies"]}["pearl"] == 100


def test_theory_prints_the_exact_speeds(tmp_path):
    setting = ["--alpha", ".9", "--gamma", "4", "--t-draft", "1 ms", "--t-target", "10 ms"]
    answer = json.loads(pearl_sim("theory", *setting, "--json", cwd=tmp_path).stdout)
    speeds = {row["policy"]: row["tokens_per_s"] for row in answer["policies"]}
    assert speeds["ar"] == pytest.approx(100)
    assert speeds["pearl"] == pytest.approx(276.5, abs=0.05)
    assert speeds["sd"] == pytest.approx(292.5, abs=0.05)
    assert answer["note_pearl_tokens_per_s"] == pytest.approx(952.4, abs=0.05)
    assert "276.5" in pearl_sim("theory", *setting, cwd=tmp_path).stdout


def test_policies_lists_all_five(tmp_path):
    listed = pearl_sim("policies", cwd=tmp_path).stdout
    assert all(name in listed for name in ("ar", "sd", "pearl", "pearl-no-pre", "pearl-no-post"))
