"""Prompt files: a prompt a line of text, or JSONL with `prompt` or `turns` (Spec-Bench question files)."""

import json
from pathlib import Path
from typing import NamedTuple

from pearl_sim.errors import InputError

BUNDLED = Path(__file__).parent / "models" / "bundled" / "prompts.jsonl"


class Prompt(NamedTuple):
    """One prompt and the category it belongs to, if known."""

    text: str
    category: str | None


def read(file: Path) -> list[Prompt]:
    """Return the prompts of a file, of turns the first; InputError names file and line."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise InputError(file, "no such file of prompts") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(file, f"cannot be read: {error}") from None
    as_json = file.suffix == ".jsonl"
    prompts = [
        _from_json(line, f"{file}: line {number}") if as_json else Prompt(line, None)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise InputError(file, "has no prompts")
    return prompts


def _from_json(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(where, f"is not JSON: {error}") from None
    record = record if isinstance(record, dict) else {}
    turns = record.get("turns")
    text = record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(text, str) or not text:
        raise InputError(where, 'must be an object with "prompt", or "turns" whose first is the prompt')
    category = record.get("category")
    return Prompt(text, None if category is None else str(category))
