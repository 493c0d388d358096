"""A timeline drawn in characters: lanes for draft, target and commits, as wide as the terminal, line under line.

A line breaks where a round starts, unless one round is longer than a line.  Prefill is told, not drawn: beside it
nothing else would show.
"""

import bisect
from itertools import pairwise
from statistics import median

from pearl_sim.drafts import drafts
from pearl_sim.rules import candidates, settle
from pearl_sim.timeline import Timeline

LEGEND = """\
draft   a mark where a token is done: + accepted, x rejected, . dropped unseen
target  accepted/checked, then : for hand-over
commit  tokens that became output"""
LABEL = 8
TICK = 20
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def draw(timeline: Timeline, width: int, scale_ns: float | None = None) -> str:
    """Return the drawing, lines of at most `width` characters; a character is `scale_ns` wide, or as wide as fits."""
    prefill, rounds = timeline[0], timeline[1:]
    if not rounds:
        return f"prefill took {_time(prefill.stop - prefill.start)} and wrote all there is"
    body, scale = max(24, width - LABEL), scale_ns or scale_of(timeline, width)
    origin = prefill.stop

    def column(ns: int) -> int:
        return int((ns - origin) / scale)

    length = column(rounds[-1].stop) + 1
    draft_lane, target_lane, commit_lane = ([" "] * (length + 1) for _ in range(3))
    fates = {draft.round: draft.fates for draft in drafts(timeline)}
    for number, step in enumerate(rounds, start=1):
        busy_until = step.start + max(step.draft_ns, step.score_ns)
        _write(target_lane, column(busy_until), ":" * (column(step.stop) - column(busy_until)))
        if step.draft_ns:
            cells = max(1, column(step.start + step.draft_ns) - column(step.start))
            _write(draft_lane, column(step.start), _drafted(fates[number], cells))
        if step.score_ns:
            cells = max(1, column(step.start + step.score_ns) - column(step.start))
            checked = candidates(step.frontier, step.round)
            _write(target_lane, column(step.start), _scored(step.accepted, checked, cells))
        committed = settle(step.frontier, step.round, step.accepted).verified - step.frontier.verified
        text = f"+{committed}" if committed else ""
        if len(text) < column(step.stop) - column(step.start):
            _write(commit_lane, column(step.stop) - len(text), text)
    starts = [column(step.start) for step in rounds]
    unit = next(name for name, ns in UNITS.items() if TICK * scale >= ns / 10 or ns == 1)
    lines = [f"after prefill ({_time(prefill.stop - prefill.start)}, not drawn)"]
    for first, last in _lines(starts, length, body):
        lanes = {
            "round": _marks(starts, first, last),
            **({"draft": "".join(draft_lane[first:last])} if fates else {}),
            "target": "".join(target_lane[first:last]),
            "commit": "".join(commit_lane[first:last]),
            unit: _axis(first, last, scale / UNITS[unit]),
        }
        lines += ["", *(f"{name:{LABEL}}{lane}".rstrip() for name, lane in lanes.items())]
    return "\n".join(lines)


def scale_of(timeline: Timeline, width: int) -> float:
    """Return how many ns a character should stand for: half a draft token, and a long round still fits a line."""
    rounds = timeline[1:] or timeline
    durations = sorted(step.stop - step.start for step in rounds)
    # A few slow rounds may run over several lines; they are not let to make all others small.
    short_ns, long_ns = durations[len(durations) // 10], durations[len(durations) * 9 // 10]
    per_token = [step.draft_ns / step.round.draft for step in rounds if step.round.draft]
    wanted = min(short_ns / 7, median(per_token) / 2) if per_token else short_ns / 7
    wanted = max(wanted, long_ns / max(24, width - LABEL))
    magnitude = 10.0 ** next(power for power in range(-3, 20) if wanted < 10.0 ** (power + 1))
    return magnitude * next(step for step in (*STEPS, 10) if step * magnitude >= 0.99 * wanted)


def _write(lane: list[str], start: int, text: str) -> None:
    lane[start : start + len(text)] = text


def _drafted(fates: str, cells: int) -> str:
    """Return a draft's tokens over its time, each where it is finished; where several are, the worst of them."""
    bounds = [cell * len(fates) // cells for cell in range(cells + 1)]
    shown = (fates[start:stop] for start, stop in pairwise(bounds))
    return "".join(next((fate for fate in "x.+" if fate in cell), "-") for cell in shown)


def _scored(accepted: int, checked: int, cells: int) -> str:
    label = f"{accepted}/{checked}" if checked else ""
    if cells >= len(label) + 2:
        return f"[{label.center(cells - 2, '=')}]"
    if cells >= max(1, len(label)):
        return label.center(cells, "=")
    return ("=" if accepted == checked else "#") * cells


def _lines(starts: list[int], length: int, body: int) -> list[tuple[int, int]]:
    """Return the first and last column of each line."""
    lines, first = [], 0
    while first < length:
        last = first + body
        if last < length:
            whole = starts[bisect.bisect_right(starts, last) - 1]
            last = whole if whole > first else last
        lines.append((first, min(last, length)))
        first = last
    return lines


def _marks(starts: list[int], first: int, last: int) -> str:
    row = [" "] * (last - first)
    for number, start in enumerate(starts, start=1):
        if first <= start < last:
            free = (starts[number] if number < len(starts) else last) - start
            text = f"|{number}"
            _write(row, start - first, text if len(text) < min(free, last - start) + 1 else "|")
    return "".join(row[: last - first])


def _axis(first: int, last: int, scale: float) -> str:
    row = [" "] * (last - first)
    for at in range(-(-first // TICK) * TICK, last, TICK):
        text = f"|{at * scale:.6g}"
        if at + len(text) <= last:
            _write(row, at - first, text)
    return "".join(row)


def _time(ns: float) -> str:
    unit = next(name for name, size in UNITS.items() if ns >= size or size == 1)
    return f"{ns / UNITS[unit]:.3g} {unit}"
