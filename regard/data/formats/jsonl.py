"""Pairs as JSON, one object a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.data.files import lines, name_of
from regard.data.pair import Pair
from regard.data.sides import Wish, choose, codes_among, nearest_code
from regard.errors import UserError

HALVES = re.compile("[\ud800-\udfff]")
FORMS = '{"source": "…", "target": "…"}, {"en": "…", "de": "…"} or {"translation": {"en": "…", "de": "…"}}'


def read(path: Path, wish: Wish) -> Iterator[Pair]:
    """An object has "source" and "target", or texts under two languages' codes, which may be in a "translation"."""
    chosen: tuple[str, str] | None = None
    for where, row in rows(path):
        texts = row if not isinstance(row.get("translation"), dict) else row["translation"]
        chosen = chosen or keys(texts, wish, where)
        found = [text_of(texts, key, where) for key in chosen]
        if not all(map(writable, found)):
            raise unwritable(where)
        yield Pair(*found)


def languages(path: Path, wish: Wish) -> tuple[str, str] | None:
    """Those of the first object."""
    for where, row in rows(path):
        texts = row if not isinstance(row.get("translation"), dict) else row["translation"]
        chosen = keys(texts, wish, where)
        return None if chosen == ("source", "target") else chosen
    return None


def rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects, each with its place."""
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        where = f"{name_of(path)}:{number}"
        row = parsed(line, where)
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a pair; a line of a .jsonl file is {FORMS}")
        yield where, row


def parsed(line: str, where: str) -> Any:
    """What a line of JSON holds."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from error


def keys(texts: Mapping[str, Any], wish: Wish, where: str) -> tuple[str, str]:
    """The two keys of a first object, which hold for all."""
    if "source" in texts or "target" in texts:
        wish.meet_no_names(where)
        return "source", "target"
    codes = codes_among([key for key, value in texts.items() if isinstance(value, str)], wish)
    if len(codes) < 2:
        raise UserError(f"{where}: not a pair; a line of a .jsonl file is {FORMS}")
    sides = choose(codes, wish, where)
    return nearest_code(codes, sides.source) or "", nearest_code(codes, sides.target) or ""


def text_of(texts: Mapping[str, Any], key: str, where: str) -> str:
    """One side."""
    text = texts.get(key)
    if not isinstance(text, str):
        raise UserError(f'{where}: not a pair, there is no text under "{key}"; a line of a .jsonl file is {FORMS}')
    return text


def writable(text: str) -> bool:
    """Whether text has a form in UTF-8: JSON may write one half of a surrogate pair, which has none."""
    return HALVES.search(text) is None


def unwritable(where: str) -> UserError:
    """What is said of other text."""
    return UserError(f"{where}: half a character (\\ud800 to \\udfff alone), which no file can hold")
