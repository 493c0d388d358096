"""A timeline as Chrome trace events, the JSON that ui.perfetto.dev opens.

A process a run, with tracks draft, target and commits; arrows from the tokens drafted to each forward that scores
them; counters of verified and pending tokens.  Times are microseconds.  Source: the Trace Event Format, Google.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pearl_sim.drafts import drafts
from pearl_sim.rules import candidates, settle
from pearl_sim.timeline import Step, Timeline

Event: TypeAlias = dict[str, Any]

DRAFT, TARGET, COMMITS = 1, 2, 3
TRACKS = {DRAFT: "draft", TARGET: "target", COMMITS: "commits"}


def trace_events(runs: Mapping[str, Timeline], about: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object for these runs by name; `about` is kept beside the events."""
    events: list[Event] = []
    arrows = 0
    for process, (name, timeline) in enumerate(runs.items(), start=1):
        events += _names(process, name)
        events += _rounds(process, timeline)
        for arrow in _arrows(process, timeline, arrows):
            events.append(arrow)
            arrows = arrow["id"]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}


def _names(process: int, name: str) -> Iterator[Event]:
    def metadata(kind: str, track: int, **args: str | int) -> Event:
        return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": args}

    yield metadata("process_name", 0, name=name)
    yield metadata("process_sort_index", 0, sort_index=process)
    for track, label in TRACKS.items():
        yield metadata("thread_name", track, name=label)
        yield metadata("thread_sort_index", track, sort_index=track)


def _rounds(process: int, timeline: Timeline) -> Iterator[Event]:
    drafted = {draft.round: draft for draft in drafts(timeline)}

    def event(phase: str, name: str, track: int, at_ns: int, **more: Any) -> Event:
        return {"ph": phase, "name": name, "cat": "round", "pid": process, "tid": track, "ts": at_ns / 1000, **more}

    yield event("C", "verified", 0, timeline[0].start if timeline else 0, args={"tokens": 0})
    yield event("C", "pending", 0, timeline[0].start if timeline else 0, args={"tokens": 0})
    for number, step in enumerate(timeline):
        verified, pending = step.frontier
        at: dict[str, Any] = {"round": number, "verified": verified, "pending": pending}
        checked, draft = candidates(step.frontier, step.round), drafted.get(number)
        if step.draft_ns:
            name, args = "prefill", at
            if draft:
                name = f"draft {draft.fates}"
                fate = {"accepted": draft.accepted, "rejected": draft.rejected}
                args = {**at, "drafted": draft.tokens, "first position": draft.first, **fate}
            yield event("X", name, DRAFT, step.start, dur=step.draft_ns / 1000, args=args)
        if step.score_ns:
            name = f"verify {step.accepted}/{checked}" if checked else "write" if number else "prefill"
            args = {**at, "scored": step.round.score, "checked": checked, "accepted": step.accepted}
            yield event("X", name, TARGET, step.start, dur=step.score_ns / 1000, args=args)
        busy_until = step.start + max(step.draft_ns, step.score_ns)
        if busy_until < step.stop:
            args = {**at, "accepted": step.accepted}
            yield event("X", "hand-over", COMMITS, busy_until, dur=(step.stop - busy_until) / 1000, args=args)
        after = settle(step.frontier, step.round, step.accepted)
        committed = after.verified - verified
        if committed:
            args = {**at, "accepted": step.accepted, "written by the target": committed - step.accepted}
            yield event("i", f"+{committed}", COMMITS, step.stop, s="t", args=args)
        yield event("C", "verified", 0, step.stop, args={"tokens": after.verified})
        yield event("C", "pending", 0, step.stop, args={"tokens": after.pending})


def _arrows(process: int, timeline: Timeline, last_id: int) -> Iterator[Event]:
    """Yield a start and a finish for every draft and forward that scores some of it, inside both slices."""
    for draft in drafts(timeline):
        source = timeline[draft.round]
        for number in draft.scored_in:
            last_id += 1
            leaves, arrives = _ends(source, timeline[number])
            arrow = {"name": "scores", "cat": "draft", "id": last_id, "pid": process}
            yield {**arrow, "ph": "s", "tid": DRAFT, "ts": leaves / 1000}
            yield {**arrow, "ph": "f", "bp": "e", "tid": TARGET, "ts": arrives / 1000}


def _ends(source: Step, sink: Step) -> tuple[float, float]:
    """Return when an arrow leaves a draft slice and reaches a target slice, in ns; never back in time."""
    if source is sink:
        # The first fresh token is scored while it is drafted: both slices start together.
        shorter = min(source.draft_ns, sink.score_ns)
        return source.start + shorter / 4, sink.start + shorter / 2
    return source.start + source.draft_ns / 2, sink.start + sink.score_ns / 2
