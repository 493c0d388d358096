"""Spec-Bench's answer files (evaluation/eval.py, evaluation/inference_*.py at github.com/hemingkx/Spec-Bench).

One JSON object a line, one question each: `question_id`, `category`, and for each of `choices` its `turns`,
`new_tokens` and `wall_time`, a number a turn, and `accept_lengths`, a number a round, all turns one after another.

How many tokens a round drafted is not in the file.  It must be one number for the whole file (the depth of a tree, for
EAGLE or Medusa), inferred where accepted lengths pile up at it, or stated.  Files of `inference_sps.py` have no such
number: Hugging Face's assisted generation changes it from round to round.

Spec-Bench counts the token that the target writes into a length.  Forks do not always; the sums over a file tell
which: lengths that add up to `new_tokens` hold it, lengths that add up to as many less as there are rounds do not.
EAGLE's own scripts write no accept_lengths, so nothing but a mean can be known from their files; they are refused.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from pearl_sim.errors import InputError
from pearl_sim.importers.lines import counts, records
from pearl_sim.importers.recording import FIRST, INSIDE, Recording, Rounds, provenance
from pearl_sim.trace import Trace

Lengths: TypeAlias = Literal["emitted", "accepted"]
PILE = 10
"""Rounds at the longest length that make a pile."""


class Answer(NamedTuple):
    """One choice of a line: its lengths, and the output tokens of each turn."""

    where: str
    name: str
    category: str | None
    lengths: list[int]
    new_tokens: list[int]


def read(file: Path, out: Path, gamma: int | None = None, lengths: Lengths | None = None) -> Trace:
    """Return the trace of `file`, to be saved at `out`.

    gamma:   tokens drafted in every round; left out, inferred.
    lengths: whether a length counts the target's own token ("emitted") or only drafts ("accepted"); left out, inferred.

    InputError names the file and line of what is wrong.
    """
    answers = list(_answers(file))
    if not answers:
        raise InputError(file, "has no answers")
    counted = _counted(file, answers) if lengths is None else lengths
    own = 1 if counted == "emitted" else 0
    for answer in answers:
        if own and 0 in answer.lengths:
            raise InputError(
                answer.where, "accept_lengths has a 0, but a round emits 1 token or more; they are accepted"
            )
    found = Counter(length - own for answer in answers for length in answer.lengths)
    drafted = _drafted(file, found) if gamma is None else gamma
    recording, unsplit = Recording(censored=True), 0
    for answer in answers:
        if max(answer.lengths) - own > drafted:
            raise InputError(answer.where, f"{max(answer.lengths) - own} drafts accepted, over --gamma {drafted}")
        turns = _turns(answer, own)
        unsplit += len(turns) < len(answer.new_tokens)
        for turn, part in enumerate(turns, start=1):
            name = answer.name if len(turns) == 1 else f"{answer.name}, turn {turn}"
            rounds = Rounds([drafted] * len(part), [length - own for length in part])
            runs, censored = rounds.runs(cut_short=True)
            recording.add(answer.where, name, answer.category, 0, runs, censored=censored)
    notes = [
        FIRST,
        INSIDE,
        "prompt lengths were not recorded and stand as 0; tokens, margins and step times were not recorded",
        f"accept_lengths are taken as {counted}" + (", as their sums say" if lengths is None else ", as stated"),
        f"every round is taken to have drafted {drafted}"
        + (", as stated" if gamma is not None else ": accepted lengths pile up there"),
        "the last round of a turn may have been cut by its end, so its run is taken as censored",
    ]
    if unsplit:
        notes.append(f"where one turn ends could not be told for {unsplit} answers; each is one request")
    options = {"gamma": gamma, "lengths": lengths}
    return recording.trace(out, provenance("spec-bench", [file], options, out, drafted, notes))


def _answers(file: Path) -> Iterator[Answer]:
    for where, record in records(file):
        choices = record.get("choices")
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise InputError(f"{where}: choices", "must be a list of objects; is this an answer file?")
        question = str(record.get("question_id", where.rpartition(" ")[2]))
        category = record.get("category")
        for index, choice in enumerate(choices):
            place = where if len(choices) == 1 else f"{where}: choices[{index}]"
            if "accept_lengths" not in choice:
                raise InputError(
                    f"{place}: accept_lengths", "is missing; counts of tokens alone do not tell acceptance"
                )
            lengths, new_tokens = counts(place, choice, "accept_lengths"), counts(place, choice, "new_tokens")
            if not lengths or not new_tokens:
                raise InputError(place, "the answer has no rounds")
            name = question if len(choices) == 1 else f"{question}, choice {index}"
            yield Answer(place, name, category if isinstance(category, str) else None, lengths, new_tokens)


def _counted(file: Path, answers: list[Answer]) -> Lengths:
    """Return whether the lengths count the target's own token, as their sums tell."""
    if any(0 in answer.lengths for answer in answers):
        return "accepted"
    total = sum(sum(answer.lengths) for answer in answers)
    rounds = sum(len(answer.lengths) for answer in answers)
    written = sum(sum(answer.new_tokens) for answer in answers)
    # The end of a turn may cut its last round, and one token of prefill may be left out.
    slack = sum((1 + max(answer.lengths)) * len(answer.new_tokens) for answer in answers)
    fits: list[Lengths] = []
    if abs(written - total) <= slack:
        fits.append("emitted")
    if abs(written - total - rounds) <= slack:
        fits.append("accepted")
    if len(fits) == 1:
        return fits[0]
    raise InputError(
        file,
        f"new_tokens add up to {written}, accept_lengths to {total} in {rounds} rounds: that does not tell whether a "
        "length counts the target's own token; state it with --lengths emitted or --lengths accepted",
    )


def _drafted(file: Path, found: Counter[int]) -> int:
    """Return the longest length if it is more frequent than the next shorter one, as only a limit makes it."""
    longest = max(found)
    if longest and found[longest] >= PILE and found[longest] > found[longest - 1]:
        return longest
    raise InputError(
        file,
        f"does not say how many tokens a round drafted, and accepted lengths do not pile up (at most {longest}, "
        f"{found[longest]} times); state it with --gamma N",
    )


def _turns(answer: Answer, own: int) -> list[list[int]]:
    """Return the lengths of each turn, if they add up to its new tokens; else all of them as one."""
    turns: list[list[int]] = [[]]
    left = list(answer.new_tokens)
    for length in answer.lengths:
        if left and sum(turns[-1]) + len(turns[-1]) * (1 - own) == left[0]:
            left.pop(0)
            turns.append([])
        turns[-1].append(length)
    return turns if len(turns) == len(answer.new_tokens) else [answer.lengths]
