"""What a timeline shows: the fate of every drafted token, Chrome trace events as their format wants them, a drawing."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from cases import constant, request, runs_from_bits, simulated
from small_trace import small_trace

from pearl_sim.acceptance import Iid
from pearl_sim.ascii_timeline import LEGEND, draw
from pearl_sim.cli_advice import timeline as command
from pearl_sim.cost import EmpiricalCost
from pearl_sim.drafts import drafts
from pearl_sim.drivers.sim import simulate
from pearl_sim.errors import InputError
from pearl_sim.metrics import totals
from pearl_sim.perfetto import trace_events
from pearl_sim.policies import POLICIES
from pearl_sim.recorded import recorded
from pearl_sim.rules import candidates
from pearl_sim.trace import load, save

ROOT = Path(__file__).parents[1]
BUNDLED = ROOT / "traces" / "bundled_cpu"
COSTS = {
    "draft faster": constant(1000, 5000, 300),
    "draft slower": constant(9000, 2000),
    "shortest": constant(1, 1, 1),
    "contended": constant(2000, 7000, 50, contention=1.7),
}


def timelines(name, gamma, cost, alpha=0.8, tokens=60):
    law = Iid(alpha=alpha)
    (timeline,) = simulated(name, gamma, [request(law.runs(7, 0, 2 * tokens + 2 * gamma), tokens)], cost)
    return timeline


every_policy = pytest.mark.parametrize("name", POLICIES)


@every_policy
def test_every_drafted_token_has_the_fate_that_the_rounds_tell(name):
    """All acceptance strings of 7 tokens, gamma 1 to 3: fates add up to what the steps and totals count."""
    for bits in itertools.product((0, 1), repeat=7):
        runs = runs_from_bits([*bits, *[0] * 5])
        for gamma in (1, 2, 3):
            asked = request(runs, 7)
            (timeline,) = simulated(name, gamma, [asked], COSTS["draft faster"])
            found, counted = drafts(timeline), totals(timeline, asked)
            assert [draft.round for draft in found] == [n for n, step in enumerate(timeline) if step.round.draft]
            assert sum(draft.tokens for draft in found) == counted.drafted
            assert sum(draft.accepted for draft in found) == sum(step.accepted for step in timeline)
            assert sum(draft.rejected for draft in found) == counted.corrections
            for draft in found:
                assert draft.fates.strip("+") in ("", "x" + "." * (len(draft.fates.strip("+")) - 1)) or (
                    set(draft.fates.strip("+")) == {"."}
                )
                assert len(draft.fates) == draft.tokens
            # Every scored draft position belongs to exactly one live draft.
            for number, step in enumerate(timeline):
                first, checked = step.frontier.verified, candidates(step.frontier, step.round)
                covered = [
                    position
                    for draft in found
                    if number in draft.scored_in
                    for position in range(draft.first, draft.first + draft.tokens)
                    if first <= position < first + checked
                ]
                assert sorted(covered) == list(range(first, first + checked))


REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
}
"""What each phase needs, from the Trace Event Format and from what Perfetto's importer reads."""

METADATA = {
    "process_name": {"name": str},
    "thread_name": {"name": str},
    "process_sort_index": {"sort_index": int},
    "thread_sort_index": {"sort_index": int},
}


def hold_to_format(document):
    """Assert what the Trace Event Format asks of each event; return the complete events by track, in order of time."""
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    slices, flows, named = {}, {}, set()
    for event in document["traceEvents"]:
        assert REQUIRED[event["ph"]] <= set(event)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert {key: type(value) for key, value in event["args"].items()} == METADATA[event["name"]]
            named.add((event["pid"], event["tid"]))
            continue
        assert isinstance(event["ts"], float)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], float)
            assert event["dur"] > 0
            assert {"round", "verified", "pending"} <= set(event["args"])
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
        elif event["ph"] == "C":
            assert all(type(value) is int for value in event["args"].values())
        elif event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        else:
            flows.setdefault(event["id"], []).append(event)
    assert set(slices) <= named
    for track in slices.values():
        for left, right in itertools.pairwise(track):
            assert left["ts"] + left["dur"] <= right["ts"] + 1e-6, "slices of a track never overlap"
    for arrow in flows.values():
        start, finish = arrow
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        assert [start[key] for key in ("name", "cat", "pid")] == [finish[key] for key in ("name", "cat", "pid")]
        assert start["ts"] <= finish["ts"]
        for end in arrow:
            assert enclosing(slices, end), "each end lies in a slice, to which the viewer binds it"
    return slices, flows


def enclosing(slices, end):
    """Return the slice that an arrow's end is bound to."""
    return [s for s in slices[end["pid"], end["tid"]] if s["ts"] <= end["ts"] <= s["ts"] + s["dur"]]


@every_policy
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("gamma", [1, 4])
def test_events_are_what_the_format_wants_and_say_what_the_steps_say(name, cost, gamma):
    timeline = timelines(name, gamma, COSTS[cost])
    document = json.loads(json.dumps(trace_events({"a run": timeline}, {"trace": "here"})))
    slices, flows = hold_to_format(document)
    draft, target = slices.get((1, 1), []), slices[1, 2]
    assert [event["dur"] for event in target] == [step.score_ns / 1000 for step in timeline if step.score_ns]
    assert [event["dur"] for event in draft] == [step.draft_ns / 1000 for step in timeline if step.draft_ns]
    assert [event["args"]["accepted"] for event in target] == [s.accepted for s in timeline if s.score_ns]
    # An arrow joins every draft to every forward that scores some of it, and nothing else.
    joined = sorted(
        tuple(enclosing(slices, end)[0]["args"]["round"] for end in flows[number]) for number in sorted(flows)
    )
    assert joined == sorted((d.round, number) for d in drafts(timeline) for number in d.scored_in)
    assert bool(flows) == (name != "ar")
    verified = [e["args"]["tokens"] for e in document["traceEvents"] if e["ph"] == "C" and e["name"] == "verified"]
    commits = [int(e["name"]) for e in document["traceEvents"] if e["ph"] == "i"]
    assert verified == sorted(verified)
    assert verified[-1] == sum(commits) >= 60
    assert [e for e in document["traceEvents"] if e["ph"] == "C" and e["args"]["tokens"] < 0] == []


def test_several_runs_are_processes_of_their_own_with_arrows_of_their_own():
    runs = {"one": timelines("pearl", 4, COSTS["draft faster"]), "two": timelines("sd", 4, COSTS["draft faster"])}
    slices, flows = hold_to_format(trace_events(runs, {}))
    assert {process for process, _ in slices} == {1, 2}
    assert {arrow[0]["pid"] for arrow in flows.values()} == {1, 2}


@pytest.mark.parametrize("source", ["ar", "sd-2", "sd-8", "pearl-2", "pearl-4", "pearl-8"])
def test_recorded_runs_of_the_bundled_trace_are_found_whole_with_their_times(source):
    trace = load(BUNDLED)
    name, _, gamma = source.partition("-")
    policy = POLICIES[name](int(gamma or 0))
    replayed = simulate(policy, trace.workload(6, None), EmpiricalCost(trace=BUNDLED).timing(policy), 0)
    for number, timeline in enumerate(replayed):
        found = recorded(trace, source, f"{number:05}", timeline)
        assert [step[4:] for step in found] == [step[4:] for step in timeline]
        assert found[0].start == 0
        assert all(left.stop == right.start for left, right in itertools.pairwise(found))
        assert all(step.stop - step.start >= max(step.draft_ns, step.score_ns) > 0 for step in found)
        steps = trace.steps.filter(source=source, request=f"{number:05}")
        assert found[-1].stop == steps["stop_ns"].max() - steps["start_ns"].min()
        hold_to_format(trace_events({"replayed": timeline, "recorded": found}, {}))


def test_a_recorded_run_that_leaves_replay_is_shown_up_to_there():
    trace = load(BUNDLED)
    policy = POLICIES["pearl"](4)
    (replayed,) = simulate(policy, trace.workload(1, None), EmpiricalCost(trace=BUNDLED).timing(policy), 0)
    # In round 9 the record has another size: round 8 must have had another outcome.
    other = pl.when((pl.col("source") == "pearl-4") & (pl.col("round") == 9)).then(3).otherwise(pl.col("tokens"))
    changed = trace.steps.with_columns(tokens=other)
    found = recorded(
        type(trace)(trace.path, trace.provenance, trace.requests, trace.tokens, changed), "pearl-4", "00000", replayed
    )
    assert [step[4:] for step in found] == [step[4:] for step in replayed[:8]]
    assert recorded(trace, "pearl-3", "00000", replayed) == []


@every_policy
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_drawing_fits_the_terminal_and_shows_every_round(name, cost, width):
    timeline = timelines(name, 4, COSTS[cost])
    lines = draw(timeline, width).split("\n")
    assert max(len(line) for line in lines) <= width
    rows = {
        label: "".join(line[8:] for line in lines if line.startswith(label)) for label in ("round", "draft", "target")
    }
    assert rows["round"].count("|") == len(timeline) - 1
    assert bool(rows["draft"].strip()) == (name != "ar")
    # At 80 columns and a common cost, every outcome can be read.
    if width >= 80 and cost == "draft faster":
        assert all(line[8] == "|" for line in lines if line.startswith("round")), "lines break between rounds"
        commits = "".join(line[8:] for line in lines if line.startswith("commit"))
        assert commits.count("+") == sum(
            1 for step in timeline[1:] if step.accepted < step.round.score or step.accepted
        )
        assert rows["draft"].count("x") == sum(draft.rejected for draft in drafts(timeline))
        for step in timeline[1:]:
            if checked := candidates(step.frontier, step.round):
                assert f"{step.accepted}/{checked}" in rows["target"]


def test_the_legend_fits_80_columns_and_a_request_of_one_token_is_told():
    assert max(len(line) for line in LEGEND.split("\n")) <= 80
    (timeline,) = simulated("pearl", 4, [request([0], 1)], COSTS["draft faster"])
    assert draw(timeline, 80) == "prefill took 5 us and wrote all there is"
    hold_to_format(trace_events({"one token": timeline}, {}))


def test_the_drawing_of_a_small_request():
    """By hand: from 1, three drafts are right and the fourth is wrong; from 5, one is right and the next wrong."""
    (timeline,) = simulated("pearl", 2, [request([0, 3, 2, 1, 0, 1, 0], 7)], constant(4000, 8000, 6000))
    assert draw(timeline, 60).split("\n") == [
        "after prefill (8 us, not drawn)",
        "",
        "round   |1     |2     |3     |4     |5",
        "draft   -+-+   -+-x   -.-.   -+-x   -.-.",
        "target  1/1=:::2/2=:::0/2=:::1/1=:::0/2=:::",
        "commit       +1     +2     +1     +1     +1",
        "us      |0                  |40",
    ]


def test_the_command_writes_the_file_and_draws(tmp_path):
    run = [sys.executable, "-c", "from pearl_sim.cli import main; main()", "timeline", str(BUNDLED)]
    arguments = ["--request", "00003", "--policy", "sd", "--gamma", "4", "--out", "t.json", "--ascii"]
    done = subprocess.run([*run, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    document = json.loads((tmp_path / "t.json").read_text())
    hold_to_format(document)
    # The luck of latencies is that which the request meets among all the others.
    policy = POLICIES["sd"](4)
    timing = EmpiricalCost(trace=BUNDLED).timing(policy)
    steps = simulate(policy, load(BUNDLED).workload(None, None), timing, 0)[3]
    shown = [e["dur"] for e in document["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, 2)]
    assert shown == [step.score_ns / 1000 for step in steps if step.score_ns]
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert names == ["sd-4 replayed", "sd-4 recorded"]
    assert document["otherData"]["request"] == "00003"
    assert "sd-4 replayed, request 00003\n" in done.stdout
    assert "sd-4 recorded, request 00003\n" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]


def test_what_cannot_be_shown_is_refused_in_one_line(tmp_path):
    short = tmp_path / "short"
    save(small_trace(short))
    file = tmp_path / "t.json"
    for trace, asked, complaint in (
        (
            BUNDLED,
            {"request": "3"},
            "--request 3: is not in the trace; its 40 requests are 00000, 00001, 00002, ... 00039",
        ),
        (BUNDLED, {"request": "00003", "out": None}, "give --out FILE.json for Perfetto, --ascii"),
        (BUNDLED, {"request": "00003", "out": tmp_path}, "is a directory; name a file"),
        (BUNDLED, {"request": "00003", "out": tmp_path / "gone" / "t.json"}, "is in no directory that exists"),
        (BUNDLED, {"request": "00003", "policy": "magic"}, "policy 'magic': must be one of ar"),
        (BUNDLED, {"request": "00003", "gamma": 0}, "gamma 0: must be 1 or more"),
        (short, {"request": "first", "gamma": 10}, "--gamma 10: the trace was recorded with at most 9"),
        (short, {"request": "first", "cost": tmp_path / "gone.toml"}, "gone.toml: no such scenario file"),
    ):
        with pytest.raises(InputError) as error:
            command(trace, **{"out": file, **asked})
        assert complaint in str(error.value)
        assert not file.exists()
