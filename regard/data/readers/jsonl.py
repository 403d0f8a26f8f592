"""JSON lines: sentence pairs as one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from regard.data.languages import LanguageRequest, choose_columns
from regard.data.readers.text import Pair, format_path, iterate_lines, number_lines
from regard.errors import UserError, short_repr
from regard.tokenizers.tokenizer import check_unicode

_EXPECTED_OBJECTS = '{"source": "…", "target": "…"}, {"en": "…", "de": "…"} or {"translation": {"en": "…", "de": "…"}}'
_NOT_A_PAIR = f"not a pair; a line of a .jsonl file is {_EXPECTED_OBJECTS}"


def read_jsonl(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the pairs: objects with "source" and "target", or with two language codes, also inside a "translation"."""
    chosen: tuple[str, str] | None = None
    for where, row in iterate_json_lines(number_lines(iterate_lines(path), format_path(path)), _NOT_A_PAIR):
        texts = row["translation"] if isinstance(row.get("translation"), dict) else row
        chosen = chosen or _choose_keys(texts, request, where)
        sides = [_read_side(texts, key, where) for key in chosen]
        yield Pair(*sides)


def iterate_json_lines(numbered: Iterable[tuple[str, str]], expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the object of each line that is not blank, with the position that `number_lines` gave it.

    An error for a line that holds another value says what is `expected`.
    """
    for where, line in numbered:
        if line.strip():
            row = parse_json_line(line, where)
            if not isinstance(row, dict):
                raise UserError(f"{where}: {expected}, not {short_repr(row)}")
            yield where, row


def detect_json_lines(lines: Iterable[str], name: str = "") -> tuple[bool, Iterator[tuple[str, str]]]:
    """Return whether lines begin with a brace, and the lines from the first that is not blank, with their positions."""
    numbered_lines = number_lines(lines, name)
    first = [next((pair for pair in numbered_lines if pair[1].strip()), ("", ""))]
    return first[0][1].lstrip().startswith("{"), chain(first, numbered_lines)


def parse_json_line(line: str, where: str) -> Any:
    """Return the value of a line of JSON; raise a UserError if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from error


def _choose_keys(texts: Mapping[str, Any], request: LanguageRequest, where: str) -> tuple[str, str]:
    """Choose the two keys by the first object; they hold for the whole file."""
    chosen = choose_columns([key for key, value in texts.items() if isinstance(value, str)], request, where)
    if chosen is None and not {"source", "target"} & texts.keys():
        raise UserError(f"{where}: {_NOT_A_PAIR}")
    return chosen or ("source", "target")  # one of them is missing, which is an error when it is read


def _read_side(texts: Mapping[str, Any], key: str, where: str) -> str:
    text = texts.get(key)
    if not isinstance(text, str):
        raise UserError(
            f'{where}: not a pair, there is no text under "{key}"; a line of a .jsonl file is {_EXPECTED_OBJECTS}'
        )
    check_unicode(text, where)
    return text
