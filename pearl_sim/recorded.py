"""The timeline of a run that a trace recorded: the rounds that replay tells, with the times that were measured."""

import polars as pl

from pearl_sim.timeline import Step, Timeline
from pearl_sim.trace import Trace


def recorded(trace: Trace, source: str, request: str, replayed: Timeline) -> Timeline:
    """Return the rounds of `source` ("pearl-4") as they were timed, as far as they are those of `replayed`.

    Steps record sizes and contexts but not outcomes, so these come from replay.  A run may leave it, at a near tie or
    under rejection sampling; what follows then, and the round that led there, is left out.  Empty if nothing of such
    a run was recorded.  A round stops where the next one starts, the last one with its longer step.
    """
    steps = trace.steps.filter(pl.col("source") == source, pl.col("request") == request)
    rounds: dict[int, dict[str, tuple[int, int, int, int]]] = {}
    for number, role, *measured in steps.select(
        "round", "role", "start_ns", "stop_ns", "tokens", "context"
    ).iter_rows():
        rounds.setdefault(number, {})[role] = tuple(measured)
    prompt_tokens = int(trace.requests.filter(pl.col("request") == request)["prompt_tokens"][0])
    timed = [rounds[number] for number in sorted(rounds)]
    alike = 0
    for number, (parts, step) in enumerate(zip(timed, replayed, strict=False)):
        did = {role: part[2:] for role, part in parts.items()}
        prefill = all(context == 0 for _, context in did.values())
        if not (did == _work(step, prompt_tokens) if number else prefill):
            break
        alike += 1
    if alike < max(len(timed), len(replayed)):
        alike -= 1
    starts = [min(part[0] for part in parts.values()) for parts in timed]
    ends = [*starts[1:], *(max(part[1] for part in parts.values()) for parts in timed[-1:])]
    timeline = []
    for parts, start, stop, step in zip(timed[: max(0, alike)], starts, ends, replayed, strict=False):
        draft_ns, score_ns = (parts[role][1] - parts[role][0] if role in parts else 0 for role in ("draft", "target"))
        began = start - starts[0]
        timeline.append(Step(began, stop - starts[0], draft_ns, score_ns, step.frontier, step.round, step.accepted))
    return timeline


def _work(step: Step, prompt_tokens: int) -> dict[str, tuple[int, int]]:
    """Return (tokens, context) of each part of a round, as steps.parquet has them."""
    verified, pending = step.frontier
    parts = {
        "draft": (step.round.draft, prompt_tokens + verified + pending),
        "target": (step.round.score, prompt_tokens + verified),
    }
    return {role: (size, context) for role, (size, context) in parts.items() if size}
