"""Pairs as JSON, one object a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.data.language_pair import LanguageRequest, choose_language_pair, find_language_columns, find_matching_code
from regard.data.readers.text_io import format_path, iterate_lines
from regard.data.sentence_pair import Pair
from regard.errors import UserError

_SURROGATES = re.compile("[\ud800-\udfff]")
_EXPECTED_OBJECTS = '{"source": "…", "target": "…"}, {"en": "…", "de": "…"} or {"translation": {"en": "…", "de": "…"}}'


def read_jsonl(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """An object has "source" and "target", or texts under two languages' codes, which may be in a "translation"."""
    chosen: tuple[str, str] | None = None
    for where, row in _iterate_objects(path):
        texts = row if not isinstance(row.get("translation"), dict) else row["translation"]
        chosen = chosen or _choose_keys(texts, request, where)
        found = [_read_side(texts, key, where) for key in chosen]
        if not all(map(is_valid_unicode, found)):
            raise make_surrogate_error(where)
        yield Pair(*found)


def find_jsonl_languages(path: Path, request: LanguageRequest) -> tuple[str, str] | None:
    """Those of the first object."""
    for where, row in _iterate_objects(path):
        texts = row if not isinstance(row.get("translation"), dict) else row["translation"]
        chosen = _choose_keys(texts, request, where)
        return None if chosen == ("source", "target") else chosen
    return None


def _iterate_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects, each with its place."""
    for number, line in enumerate(iterate_lines(path), 1):
        if not line.strip():
            continue
        where = f"{format_path(path)}:{number}"
        row = parse_json_line(line, where)
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a pair; a line of a .jsonl file is {_EXPECTED_OBJECTS}")
        yield where, row


def parse_json_line(line: str, where: str) -> Any:
    """What a line of JSON holds."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from error


def _choose_keys(texts: Mapping[str, Any], request: LanguageRequest, where: str) -> tuple[str, str]:
    """The two keys of a first object, which hold for all."""
    if "source" in texts or "target" in texts:
        request.check_unnamed_file(where)
        return "source", "target"
    codes = find_language_columns([key for key, value in texts.items() if isinstance(value, str)], request)
    if len(codes) < 2:
        raise UserError(f"{where}: not a pair; a line of a .jsonl file is {_EXPECTED_OBJECTS}")
    sides = choose_language_pair(codes, request, where)
    return find_matching_code(codes, sides.source) or "", find_matching_code(codes, sides.target) or ""


def _read_side(texts: Mapping[str, Any], key: str, where: str) -> str:
    """One side."""
    text = texts.get(key)
    if not isinstance(text, str):
        raise UserError(
            f'{where}: not a pair, there is no text under "{key}"; a line of a .jsonl file is {_EXPECTED_OBJECTS}'
        )
    return text


def is_valid_unicode(text: str) -> bool:
    """Whether text has a form in UTF-8: JSON may write one half of a surrogate pair, which has none."""
    return _SURROGATES.search(text) is None


def make_surrogate_error(where: str) -> UserError:
    """What is said of other text."""
    return UserError(f"{where}: half a character (\\ud800 to \\udfff alone), which no file can hold")
