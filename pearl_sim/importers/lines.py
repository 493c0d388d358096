"""Text that other tools wrote: UTF-8, gzipped or not, read a line at a time, so that a file may be larger than memory.

Every complaint names the file and the line.  CRLF and a byte order mark are fine.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from pearl_sim.errors import InputError

LONGEST = 1 << 26
"""Bytes of a line at most: a longer one is no record, and must not fill the memory."""

LARGEST = 2**63
GZIP, UTF8_MARK, UTF16_MARKS = b"\x1f\x8b", b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


def numbered(file: Path) -> Iterator[tuple[str, str]]:
    """Yield ("FILE: line N", the line without its end) for every line that is not blank.

    InputError if there is none, or one cannot be read.
    """
    number, found = 0, False
    try:
        if not file.exists():
            raise InputError(file, "no such file")
        if not file.is_file():
            raise InputError(file, "must be a regular file")
        with _opened(file) as stream:
            while raw := stream.readline(LONGEST):
                number += 1
                where = f"{file}: line {number}"
                if len(raw) == LONGEST:
                    raise InputError(where, f"is longer than {LONGEST >> 20} MiB; must be one record a line")
                if number == 1:
                    if raw.startswith(UTF16_MARKS):
                        raise InputError(file, "is UTF-16; save it as UTF-8")
                    raw = raw.removeprefix(UTF8_MARK)
                line = raw.rstrip(b"\r\n")
                if line.strip():
                    found = True
                    yield where, line.decode()
    except UnicodeDecodeError as error:
        raise InputError(where, f"is not UTF-8: byte {error.object[error.start]:#04x}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file}: line {number + 1}", f"cannot be read: {error}") from None
    if not found:
        raise InputError(file, "is empty")


def records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE: line N", object) for every line of a JSONL file."""
    for where, line in numbered(file):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(where, f"is not JSON, one object a line: {error}") from None
        if not isinstance(record, dict):
            raise InputError(where, "must be a JSON object")
        yield where, record


def counts(where: str, record: dict[str, Any], key: str) -> list[int]:
    """Return a record's list of whole numbers, 0 or more; InputError at the first that is not."""
    values = record.get(key)
    if not isinstance(values, list):
        raise InputError(f"{where}: {key}", "is missing" if values is None else "must be a list of whole numbers")
    if not all(type(value) is int and 0 <= value < LARGEST for value in values):
        for value in values:
            count(f"{where}: {key}", value)
    return values


def count(where: str, value: object) -> int:
    """Return a whole number of 64 bits, 0 or more, or raise InputError."""
    if type(value) is not int or value >= LARGEST:
        raise InputError(where, "is missing" if value is None else f"{value!r} must be a whole number")
    if value < 0:
        raise InputError(where, f"{value} must be 0 or more")
    return value


def sha256(file: Path) -> str:
    """Return the digest of the file as it lies on disk."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _opened(file: Path) -> BinaryIO:
    with file.open("rb") as start:
        packed = start.read(2) == GZIP
    return cast(BinaryIO, gzip.open(file, "rb")) if packed else file.open("rb")
