"""What a request asks for: a JSON object, or a form and the query of the address."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from regard.serve.engine.thread_pool import Aside, at_once
from regard.serve.http.errors import Refusal, missing

T = TypeVar("T")

SMALL = 20_000  # bytes that are taken apart so soon that nobody waits for it
PARTS = 100_000  # of one body: Python stands still while JSON is read, in whichever thread
DIGITS = 20  # of whole numbers that are exact: the time to parse one grows with the square of its digits
FIELDS = 100  # of one form
FORM = "regard.form"  # where the scope of a request has a form whose file is to be closed
WINDOW = 50_000  # bytes of a form that are decoded at once


class Fields:
    """The parameters of a request, by name."""

    def __init__(self, values: dict[str, Any], is_form: bool) -> None:
        self.values = values
        self.is_form = is_form

    @property
    def cost(self) -> int:
        """Requests that it counts as: as many as it has texts."""
        texts = self.values.get("q")
        return max(1, len(texts)) if isinstance(texts, list) else 1

    @property
    def characters(self) -> int:
        """Characters of its texts."""
        texts = self.values.get("q")
        return sum(len(text) for text in (texts if isinstance(texts, list) else [texts]) if isinstance(text, str))

    def text(self, name: str, default: str | None = None) -> str:
        """A parameter that is one text; without a default it must be there."""
        value = self.values.get(name)
        if value is None or value == "":
            if default is None:
                raise missing(name)
            return default
        if not isinstance(value, str):
            raise Refusal(f"Invalid request: {name} parameter is not text")
        return sound(value)

    def texts(self, name: str) -> tuple[list[str], bool]:
        """One text, or in JSON several; and whether it was several."""
        value = self.values.get(name)
        if not value and value is not False and value != 0:
            raise missing(name)
        several = isinstance(value, list)
        given = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in given):
            raise Refusal(f"Invalid request: {name} parameter is neither text nor a list of texts")
        if self.is_form:  # browsers and old systems write other line ends there; JSON says what it means
            given = [text.replace("\r\n", "\n").replace("\r", "\n") for text in given]
        return [sound(text) for text in given], several

    def number(self, name: str, default: int) -> int:
        """A parameter that is a whole number."""
        value = self.values.get(name)
        if value is None or value == "":
            return default
        try:
            if isinstance(value, bool | list | dict) or (isinstance(value, float) and value != int(value)):
                raise ValueError
            return int(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise Refusal(f"Invalid request: {name} parameter is not a number") from error

    def flag(self, name: str) -> bool:
        """A parameter that is yes or no."""
        value = self.values.get(name, False)
        return value is True or (isinstance(value, str) and value.lower() in ("true", "1", "yes"))

    def file(self, name: str) -> UploadFile:
        """A parameter that is a file."""
        value = self.values.get(name)
        if not isinstance(value, UploadFile):
            raise missing(name)
        return value


async def read(request: Request, aside: Aside) -> Fields:
    """The parameters of a request; a body that is not small is taken apart aside."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return Fields(await parsed(from_json, await request.body(), aside), is_form=False)
    values: list[tuple[str, Any]] = request.query_params.multi_items()
    if kind == "multipart/form-data":
        try:
            request.scope[FORM] = form = await request.form(max_files=1, max_fields=FIELDS)
            values += form.multi_items()
        except HTTPException as error:
            raise Refusal(f"Invalid form: {error.detail}", error.status_code) from error
        except (UnicodeDecodeError, ValueError) as error:
            raise Refusal("Invalid form") from error
        return Fields(once(values), is_form=True)
    body = await request.body()
    if body.lstrip()[:1] == b"{" and "q" not in dict(values):
        raise Refusal("Invalid request: the body looks like JSON; send Content-Type: application/json")
    if kind == "application/x-www-form-urlencoded":
        values += await parsed(from_form, body, aside)
    return Fields(once(values), is_form=True)


def once(values: list[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name; of one that came twice nobody can tell which was meant."""
    found: dict[str, Any] = {}
    for name, value in values:
        if name in found:
            raise Refusal(
                f"Invalid request: {name} parameter is given more than once; several texts are a list in JSON"
            )
        found[name] = value
    return found


async def parsed(parse: Callable[[bytes], T], body: bytes, aside: Aside) -> T:
    """What a body says."""
    return await (aside if len(body) > SMALL else at_once)(parse, body)


def from_form(body: bytes) -> list[tuple[str, Any]]:
    """The fields of a form."""
    if body.count(b"&") >= FIELDS:
        raise Refusal("Invalid form")
    parts = [field.partition(b"=") for field in body.split(b"&") if field]
    return [(_unquote(name), _unquote(value)) for name, _, value in parts]


def _unquote(quoted: bytes) -> str:
    """Decode a part of a form a little at a time: no other thread runs while `unquote_to_bytes` joins what it found."""
    found, start = bytearray(), 0
    while start < len(quoted):
        end = start + WINDOW
        end = next((cut for cut in (end - 2, end - 1) if quoted[cut : cut + 1] == b"%"), end)  # no escape is cut
        found += unquote_to_bytes(quoted[start:end].replace(b"+", b" "))
        start = end
    return found.decode("utf-8", "replace")


def from_json(body: bytes) -> dict[str, Any]:
    """The object that a body holds, in UTF-8: parts are counted in bytes, which other encodings would escape."""
    if body[:2] in (b"\xff\xfe", b"\xfe\xff") or 0 in body[:4]:
        raise Refusal("Invalid JSON format")
    if _has_more_parts(body, PARTS):
        raise Refusal(f"Invalid request: the body has more than {PARTS} parts", 413)
    try:
        found = json.loads(body, parse_int=_parse_int, parse_float=_parse_float)
    except (ValueError, RecursionError) as error:
        raise Refusal("Invalid JSON format") from error
    if not isinstance(found, dict):
        raise Refusal("Invalid JSON format")
    return found


def _has_more_parts(body: bytes, most: int) -> bool:
    """Return whether JSON has more than `most` texts, arrays, objects and commas between values.

    Each step is one short call of C code, after which the event loop can run; one regular expression would hold the
    interpreter lock three times as long as `json.loads`.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = (unescaped.count(b'"') + 1) // 2
    if texts > most:
        return True
    outside = b"".join(unescaped.split(b'"')[::2])
    return texts + sum(map(outside.count, (b",", b"[", b"{"))) > most


# Functions of Python, although `float` would do: the interpreter lock is released between numbers.
def _parse_int(digits: str) -> float:
    return int(digits) if len(digits.lstrip("-")) < DIGITS else float(digits)


def _parse_float(digits: str) -> float:
    return float(digits)


def sound(text: str) -> str:
    """Text that can be written as UTF-8: half of a character that came without its other half is marked as such."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def numbers(row: Any) -> list[float] | None:
    """Numbers that are short in writing; nothing where there are none."""
    return None if row is None else [round(float(number), 4) for number in row]


def encode_json(value: Any) -> bytes:
    """Write an answer as Starlette's JSONResponse does, but row by row: no other thread runs while one is written."""
    return _to_json(value).encode("utf-8")


def _to_json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_to_json(str(name))}:{_to_json(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple) and any(isinstance(part, dict | list | tuple) for part in value):
        return "[" + ",".join(map(_to_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
