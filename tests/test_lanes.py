"""What is on the lanes is what took place: every token once, no device doing two things, every fate the rules' own."""

import itertools

import pytest
from cases import constant, request, runs_from_bits, simulated

from pearl_sim.lanes import boxes
from pearl_sim.metrics import totals
from pearl_sim.policies import POLICIES

LIMIT = 6
TEXTS = list(itertools.product((0, 1), repeat=7))


def played(name, gamma):
    """Yield (request, timeline) for every text of accepted and rejected drafts."""
    requests = [request(runs_from_bits([*bits, *(0,) * 8]), LIMIT) for bits in TEXTS]
    yield from zip(requests, simulated(name, gamma, requests, constant(3, 10, 2)), strict=True)


@pytest.mark.parametrize("gamma", [1, 2, 4])
@pytest.mark.parametrize("name", POLICIES)
def test_lanes_tell_the_whole_timeline(name, gamma):
    for own, timeline in played(name, gamma):
        found, sums = boxes(timeline), totals(timeline, own)
        for lane in ("draft", "target"):
            placed = sorted((box.start, box.stop) for box in found if box.lane == lane)
            assert all(first[1] <= second[0] for first, second in itertools.pairwise(placed))
        drafts = [box for box in found if box.lane == "draft" and box.fate != "prefill"]
        assert len(drafts) == sums.drafted
        assert sum(box.stop - box.start for box in found if box.lane == "draft") == sums.draft_ns
        forwards = [box for box in found if box.fate in ("verifies", "prefill") and box.lane == "target"]
        assert sum(box.stop - box.start for box in forwards) == sums.score_ns
        assert sum(box.tokens for box in forwards) == sum(timeline[-1].frontier[:1]) + forwards[-1].tokens


@pytest.mark.parametrize("gamma", [1, 2, 4])
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "ar"])
def test_every_draft_has_the_fate_that_its_text_gives_it(name, gamma):
    for own, timeline in played(name, gamma):
        drafts = [box for box in boxes(timeline) if box.lane == "draft" and box.fate != "prefill"]
        accepted = [box.position for box in drafts if box.fate == "accepted"]
        assert len(accepted) == len(set(accepted)), "an output position is written once"
        corrections = sum(box.fate == "rejected" for box in drafts)
        assert corrections == totals(timeline, own).corrections
        right = {box.position for box in drafts if box.fate == "accepted"}
        refused = {box.position for box in drafts if box.fate == "rejected"}
        assert all(own.runs[position] > 0 for position in right)
        assert all(own.runs[position] == 0 for position in refused)
