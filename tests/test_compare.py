"""Simulated against real: equal where it must be, wrong by what is wrong, and told apart by part."""

import json
import sys

import numpy as np
import polars as pl
import pytest

from pearl_sim.cli import main
from pearl_sim.compare import PARTS, compare, verdict
from pearl_sim.cost import AffineCost, AffineForward
from pearl_sim.drivers.sim import simulate
from pearl_sim.efficiency import efficiency
from pearl_sim.errors import InputError
from pearl_sim.judge import Request
from pearl_sim.policies import POLICIES, label, of_label
from pearl_sim.trace import REQUESTS, STEPS, TOKENS, Provenance, Trace, save


def cost(draft="100 us", target="700 us", sync="40 us"):
    forwards = {"draft": draft, "target": target}
    return AffineCost(**{role: AffineForward(base=base) for role, base in forwards.items()}, sync=sync)


def run_of(path, real, gammas=(1, 3), requests=4):
    """Return a trace whose timed runs are what the simulator makes of `real`, written down as steps."""
    rng = np.random.default_rng(5)
    runs = [rng.integers(0, 6, 40) for _ in range(requests)]
    names = [f"{number:05}" for number in range(requests)]
    table, steps = [], []
    for name in POLICIES:
        for gamma in gammas:
            policy = POLICIES[name](gamma)
            timelines = simulate(policy, [Request(5, 30, one) for one in runs], real.timing(policy), 0)
            for request, timeline in zip(names, timelines, strict=True):
                for number, step in enumerate(timeline):
                    verified, pending = step.frontier
                    both = step.draft_ns > 0 and step.score_ns > 0
                    for role, ns, size, at in (
                        ("draft", step.draft_ns, step.round.draft, verified + pending),
                        ("target", step.score_ns, step.round.score, verified),
                    ):
                        if ns:
                            what = (size, 5 + at) if number else (5, 0)
                            span = (step.start, step.start + ns)
                            steps.append((label(name, gamma), request, number, role, *span, *what, 1, both))
    for request, own in zip(names, runs, strict=True):
        table += [(request, i, 1, int(own[i]), 1, 0.5, None) for i in range(30)]
    made = Trace(
        path,
        Provenance(source="made up", created="2026-01-01", command="none"),
        pl.DataFrame([(name, None, 5, 30, "length") for name in names], REQUESTS, orient="row"),
        pl.DataFrame(table, TOKENS, orient="row"),
        pl.DataFrame(steps, STEPS, orient="row").unique(maintain_order=True),
    )
    save(made)
    return made


def test_a_run_that_the_cost_describes_is_equal_in_rounds_and_time(tmp_path):
    found = compare(run_of(tmp_path / "run", cost()), cost(), "its own")
    assert len(found) == 9
    assert (found["equal_requests"] == 4).all()
    # What passes after a request's last step nobody recorded: at most one hand-over.
    assert found["error"].abs().max() < 0.01
    assert found["round_error_p50"].abs().max() < 1e-12
    assert verdict(found).rounds_equal


@pytest.mark.parametrize(
    ("wrong", "policy", "part"),
    [
        ({"target": "1400 us"}, "ar", "target alone"),
        ({"draft": "200 us"}, "sd", "draft alone"),
        ({"target": "1400 us"}, "pearl", "both"),
        ({"sync": "400 us"}, "pearl", "hand-over"),
    ],
)
def test_what_is_wrong_shows_in_its_part_and_the_parts_add_up(tmp_path, wrong, policy, part):
    found = compare(run_of(tmp_path / "run", cost()), cost(**wrong), "wrong")
    assert (found["equal_requests"] == 4).all(), "times change no round"
    row = found.filter(policy=policy).row(-1, named=True)
    assert row["error"] < -0.05
    assert row[part] > 0.05
    assert row[part] == max(row[name] for name in PARTS)
    assert sum(row[name] for name in PARTS) == pytest.approx(1 / (1 + row["error"]) - 1, abs=1e-12)
    assert row["error_low"] <= row["error"] <= row["error_high"]


def test_a_run_that_left_the_rounds_is_found_out_and_left_out_of_the_times(tmp_path):
    run = run_of(tmp_path / "run", cost())
    odd = (pl.col("source") == "pearl-3") & (pl.col("request") == "00001") & (pl.col("round") == 2)
    steps = run.steps.with_columns(tokens=pl.when(odd).then(pl.col("tokens") + 1).otherwise(pl.col("tokens")))
    changed = Trace(run.path, run.provenance, run.requests, run.tokens, steps)
    found = compare(changed, cost(), "its own")
    assert found.filter(equal_requests=3).select("policy", "gamma").rows() == [("pearl", 3)]
    assert not verdict(found).rounds_equal
    assert found["error"].abs().max() < 0.01


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path):
    run = run_of(tmp_path / "run", cost())
    with pytest.raises(InputError, match=r"no timed run of pearl-9; it has: ar, sd-1"):
        compare(run, cost(), "any", ["pearl-9"])
    empty = Trace(run.path, run.provenance, run.requests, run.tokens, run.steps.clear())
    with pytest.raises(InputError, match="no timed runs"):
        compare(empty, cost(), "any")


def test_labels_name_policies_and_nothing_else():
    for name in POLICIES:
        for gamma in (1, 12):
            named = of_label(label(name, gamma))
            assert named == (name, gamma if name != "ar" else 0)
    for odd in ("ar-3", "sd", "pearl-", "pearl-x", "pearl-03", "profile sd-1 at 5 x 1", "", "-1"):
        assert of_label(odd) is None


def test_compare_from_the_command_line_fails_past_its_tolerance_only(tmp_path, monkeypatch, capsys):
    run_of(tmp_path / "run", cost())
    (tmp_path / "slow.toml").write_text(
        '[cost]\nmodel = "affine"\nsync = "40 us"\n[cost.draft]\nbase = "100 us"\n[cost.target]\nbase = "840 us"\n'
    )
    monkeypatch.chdir(tmp_path)

    def said(*more):
        monkeypatch.setattr(sys, "argv", ["pearl-sim", "compare", "run", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr()

    code, told = said("--cost", "slow.toml", "--tolerance", "0.3", "--policy", "ar,pearl", "--gamma", "3", "--json")
    assert code == 0
    answer = json.loads(told.out)
    assert [(cell["policy"], cell["gamma"]) for cell in answer["cells"]] == [("ar", 0), ("pearl", 3)]
    assert answer["rounds_equal"] is True
    assert 0.1 < answer["worst_error"] < 0.2
    code, told = said("--cost", "slow.toml", "--tolerance", "0.05", "--out", "c.png")
    assert code == 1
    assert "every round of every run" in told.out
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    for wrong, complaint in (
        (["--tolerance", "2"], "--tolerance 2.0: must be a share"),
        (["--gamma", "x"], "must be whole numbers"),
        (["--policy", "sd", "--gamma", "7"], "--gamma 7: was not timed in run; there are 1, 3"),
        (["--policy", "pearl,typo"], "--policy typo: was not timed in run; there are ar, pearl,"),
        (["--out", "c.txt"], "--out c.txt: must be a .png file"),
        (["--out", "nowhere/c.png"], "--out nowhere/c.png: must be a .png file in a directory that exists"),
        (["--cost", "gone.toml"], "gone.toml: no such"),
    ):
        code, told = said(*wrong)
        assert code == 2
        assert complaint in told.err
        assert told.err.count("\n") == 1


def test_efficiency_by_hand():
    """Two rounds of 100 and 200: the draft ends 10 late in the first, and 5 and 20 pass before the next ones."""
    rows = [
        ("pearl-2", "0", 1, "target", 0, 100, 1, 9, 1, True),
        ("pearl-2", "0", 1, "draft", 30, 110, 2, 9, 1, True),
        ("pearl-2", "0", 2, "target", 115, 315, 2, 9, 1, True),
        ("pearl-2", "0", 2, "draft", 120, 200, 2, 9, 1, True),
        ("pearl-2", "0", 3, "target", 335, 400, 2, 9, 1, True),
    ]
    ((source, rounds, wall, over, late, after),) = efficiency(pl.DataFrame(rows, STEPS, orient="row")).rows()
    assert (source, rounds) == ("pearl-2", 2)
    assert wall == pytest.approx(335 / 300)
    assert (over, late, after) == pytest.approx((0.0175, 0.005, 0.0125))
