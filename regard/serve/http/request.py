"""Reading a request: a JSON object, or a form and the query of the URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.requests import Request

from regard.serve.engine.thread_pool import BoundedThreadPool
from regard.serve.http.errors import HTTPError

T = TypeVar("T")

SMALL_BODY = 20_000  # bytes that are parsed so soon that no thread is needed
MAX_JSON_PARTS = 100_000  # of one body: all threads stand still while JSON is parsed
EXACT_DIGITS = 20  # of exact whole numbers: the time to parse one grows with the square of its digits
MAX_FORM_FIELDS = 100
FORM_SCOPE_KEY = "regard.form"  # key of the scope for a form whose file is to be closed
UNQUOTE_WINDOW = 50_000  # bytes of a form that are decoded at once


async def read_parameters(request: Request, pool: BoundedThreadPool) -> dict[str, Any]:
    """Read the parameters of a request by name; a body that is not small is parsed in a thread."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "application/json" or content_type.endswith("+json"):
        return await _parse(parse_json, await request.body(), pool)
    parameters: list[tuple[str, Any]] = request.query_params.multi_items()
    if content_type == "multipart/form-data":
        try:
            request.scope[FORM_SCOPE_KEY] = form = await request.form(max_files=1, max_fields=MAX_FORM_FIELDS)
        except HTTPException as error:
            raise HTTPError(f"Invalid form: {error.detail}", error.status_code) from error
        except (UnicodeDecodeError, ValueError) as error:
            raise HTTPError("Invalid form") from error
        parameters += form.multi_items()
    else:
        body = await request.body()
        if body.lstrip()[:1] == b"{" and "q" not in dict(parameters):
            raise HTTPError("Invalid request: the body looks like JSON; send Content-Type: application/json")
        if content_type == "application/x-www-form-urlencoded":
            parameters += await _parse(parse_form, body, pool)
    values: dict[str, Any] = {}
    for name, value in parameters:
        if name in values:
            raise HTTPError(
                f"Invalid request: {name} parameter is given more than once; several texts are a list in JSON"
            )
        values[name] = value
    if isinstance(text := values.get("q"), str):  # browsers and old systems write other line ends; JSON is exact
        values["q"] = text.replace("\r\n", "\n").replace("\r", "\n")
    return values


def count_texts(values: Mapping[str, Any]) -> int:
    """Return the requests that a request counts as by its texts: one for each."""
    texts = values.get("q")
    return max(1, len(texts)) if isinstance(texts, list) else 1


def count_characters(values: Mapping[str, Any]) -> int:
    """Return the characters of all texts of a request."""
    texts = values.get("q")
    return sum(len(text) for text in (texts if isinstance(texts, list) else [texts]) if isinstance(text, str))


async def _parse(parse: Callable[[bytes], T], body: bytes, pool: BoundedThreadPool) -> T:
    return await pool(parse, body) if len(body) > SMALL_BODY else parse(body)


def parse_form(body: bytes) -> list[tuple[str, Any]]:
    """Parse the fields of a form."""
    if body.count(b"&") >= MAX_FORM_FIELDS:
        raise HTTPError("Invalid form")
    fields = [field.partition(b"=") for field in body.split(b"&") if field]
    return [(_unquote(name), _unquote(value)) for name, _, value in fields]


def _unquote(quoted: bytes) -> str:
    """Decode a part of a form in windows: no other thread runs while `unquote_to_bytes` joins what it found."""
    decoded, start = bytearray(), 0
    while start < len(quoted):
        end = start + UNQUOTE_WINDOW
        end = next((cut for cut in (end - 2, end - 1) if quoted[cut : cut + 1] == b"%"), end)  # no escape is cut
        decoded += unquote_to_bytes(quoted[start:end].replace(b"+", b" "))
        start = end
    return decoded.decode("utf-8", "replace")


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8: parts are counted in bytes, which other encodings would escape."""
    if body[:2] in (b"\xff\xfe", b"\xfe\xff") or 0 in body[:4]:
        raise HTTPError("Invalid JSON format")
    if _has_more_parts(body, MAX_JSON_PARTS):
        raise HTTPError(f"Invalid request: the body has more than {MAX_JSON_PARTS} parts", 413)
    try:
        parsed = json.loads(body, parse_int=_parse_int, parse_float=_parse_float)
    except (ValueError, RecursionError) as error:
        raise HTTPError("Invalid JSON format") from error
    if not isinstance(parsed, dict):
        raise HTTPError("Invalid JSON format")
    return parsed


def _has_more_parts(body: bytes, limit: int) -> bool:
    """Return whether JSON has more than `limit` texts, arrays, objects and commas between values.

    Each step is one short call of C code, after which the event loop can run; one regular expression would hold the
    GIL three times as long as `json.loads`.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = (unescaped.count(b'"') + 1) // 2
    if texts > limit:
        return True
    outside = b"".join(unescaped.split(b'"')[::2])
    return texts + sum(map(outside.count, (b",", b"[", b"{"))) > limit


# Functions of Python, although `float` would do: the GIL is released between numbers.
def _parse_int(digits: str) -> float:
    return int(digits) if len(digits.lstrip("-")) < EXACT_DIGITS else float(digits)


def _parse_float(digits: str) -> float:
    return float(digits)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can hold, so that a text can be encoded as UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
