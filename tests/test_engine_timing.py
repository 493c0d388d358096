"""When things happen in real runs: the order that the simulator takes for granted, and bounds on what rounds last.

Nothing here says how fast anything is; a busy machine changes no outcome.
"""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra: models")
pytest.importorskip("transformers", reason="needs the extra: models")

import tiny_pair

from pearl_sim import capture
from pearl_sim.drivers.real import decode
from pearl_sim.drivers.sim import simulate
from pearl_sim.judge import Request
from pearl_sim.models.lm import ModelSettings
from pearl_sim.models.pair import open_pair
from pearl_sim.models.sampling import Sampling
from pearl_sim.policies import POLICIES


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    models = tiny_pair.make(tmp_path_factory.mktemp("pair"))
    target, draft = (ModelSettings(str(models / role)) for role in ("target", "draft"))
    with open_pair(target, draft, Sampling(mode="coupled", seed=2)) as pair:
        yield pair


runs = given(
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 8),
    st.text(st.characters(max_codepoint=126), min_size=1, max_size=20),
    st.integers(1, 24),
)
few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def emitted(pair, name, gamma, prompt, limit):
    policy = POLICIES[name](gamma)
    return list(decode(policy, pair.tokenizer.encode(prompt), limit, pair.target, pair.draft, pair.sampling))


def spans(rounds, role):
    """Return (start, stop) of every step of one model."""
    if role == "draft":
        return [(e.draft_start, e.draft_start + e.step.draft_ns) for e in rounds if e.step.draft_ns]
    return [(e.score_start, e.score_start + e.step.score_ns) for e in rounds if e.step.score_ns]


@few
@runs
def test_a_model_does_one_thing_at_a_time_and_no_round_starts_before_the_last_is_over(pair, name, gamma, prompt, limit):
    rounds = emitted(pair, name, gamma, prompt, limit)
    for role in ("draft", "target"):
        own = spans(rounds, role)
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    steps = [e.step for e in rounds]
    assert all(before.stop <= after.start for before, after in pairwise(steps))


@few
@runs
def test_every_step_lies_within_its_round_and_exactly_the_models_that_are_to_work_do(pair, name, gamma, prompt, limit):
    """So the drafts that a round scores were there when it began: they were written in rounds before."""
    for number, e in enumerate(emitted(pair, name, gamma, prompt, limit)):
        drafts = e.step.round.draft > 0 or (number == 0 and POLICIES[name](gamma).gamma > 0)  # prefill
        assert (e.step.draft_ns > 0) == (e.draft_start > 0) == drafts
        assert (e.step.score_ns > 0) == (e.score_start > 0) == (e.step.round.score > 0)
        for role in ("draft", "target"):
            for start, stop in spans([e], role):
                assert e.step.start <= start <= stop <= e.step.stop


@few
@runs
def test_wall_time_lies_between_the_critical_path_and_all_work_plus_all_idleness(pair, name, gamma, prompt, limit):
    rounds = emitted(pair, name, gamma, prompt, limit)
    steps = [e.step for e in rounds]
    wall = steps[-1].stop - steps[0].start
    assert wall >= sum(max(step.draft_ns, step.score_ns) for step in steps)
    # Between rounds nothing happens but bookkeeping; within one, nothing but the steps, the wait for the draft's start,
    # and what follows the last step.  Each is read off one clock by itself.
    between = sum(after.start - before.stop for before, after in pairwise(steps))
    late = sum(max(0, e.draft_start - e.step.start) for e in rounds if e.step.draft_ns)
    early = sum(e.score_start - e.step.start for e in rounds if e.step.score_ns)
    tail = sum(e.step.stop - max(stop for role in ("draft", "target") for _, stop in spans([e], role)) for e in rounds)
    assert wall <= sum(step.draft_ns + step.score_ns for step in steps) + between + late + early + tail


def test_the_models_of_a_parallel_round_run_at_the_same_time(pair):
    """That they are told to is certain; that they do is up to the system, so most of many rounds must."""
    rounds = [e for text in ("def f(x):", "import os", "z") for e in emitted(pair, "pearl", 8, text, 60)[1:]]
    together = 0
    for e in rounds:
        ((draft_start, draft_stop),), ((start, stop),) = spans([e], "draft"), spans([e], "target")
        together += max(draft_start, start) < min(draft_stop, stop)
    assert together > len(rounds) / 2
    assert not any(e.step.draft_ns and e.step.score_ns for e in emitted(pair, "sd", 8, "z", 60)[1:])


@few
@runs
def test_as_many_forwards_take_place_as_the_simulator_says(pair, name, gamma, prompt, limit):
    """Counted where they are made; the draft's by the tokens that its chains came back with."""
    policy, encoded = POLICIES[name](gamma), pair.tokenizer.encode(prompt)
    text = capture.write_text(pair, encoded, 0, limit, 2 * gamma + 1)
    _, runs, _ = capture.foresee(pair, encoded, text, 0)
    timing = capture.ConstantCost(draft="1 ns", target="1 ns").timing(policy)
    limit = text.output_tokens
    (steps,) = simulate(policy, [Request(len(encoded), limit, runs)], timing, 0)
    forwards, forward = [], pair.target.model.forward

    def counted(*given, **more):
        forwards.append(1)
        return forward(*given, **more)

    pair.target.model.forward = pair.target._forward = counted
    written, finish = [], pair.draft.finish

    def finished():
        found = finish()
        written.append(len(found.tokens))
        return found

    pair.draft.finish = finished
    try:
        list(decode(policy, encoded, limit, pair.target, pair.draft, pair.sampling))
    finally:
        pair.target.model.forward = pair.target._forward = forward
        del pair.draft.finish
    assert len(forwards) == sum(step.round.score > 0 for step in steps)
    assert sum(written) == sum(step.round.draft for step in steps)
