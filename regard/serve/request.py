"""Reading a request: a JSON object, or a form and the query of the URL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from regard.serve.engine.background import BoundedThreadPool
from regard.serve.errors import HTTPError

T = TypeVar("T")

SMALL_BODY = 20_000  # bytes that are parsed so soon that no thread is needed
MAX_JSON_PARTS = 100_000  # of one body: all threads stand still while JSON is parsed
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
MAX_FORM_FIELDS = 100


class UploadedFile(NamedTuple):
    """File of a form."""

    name: str
    content: bytes


async def read_parameters(request: Request, pool: BoundedThreadPool) -> dict[str, Any]:
    """Read the parameters of a request by name; a body that is not small is parsed in a thread."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "application/json" or content_type.endswith("+json"):
        return await _parse(parse_json, await request.body(), pool)
    parameters: list[tuple[str, Any]] = request.query_params.multi_items()
    if content_type == "multipart/form-data":
        parameters += await _read_multipart(request)
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


async def _read_multipart(request: Request) -> list[tuple[str, Any]]:
    """Read a form with its file, of which a large one is in a temporary file until then."""
    try:
        async with request.form(max_files=1, max_fields=MAX_FORM_FIELDS) as form:
            return [
                (name, value if isinstance(value, str) else UploadedFile(value.filename or "", await value.read()))
                for name, value in form.multi_items()
            ]
    except HTTPException as error:
        raise HTTPError(f"Invalid form: {error.detail}", error.status_code) from error
    except ValueError as error:
        raise HTTPError("Invalid form") from error


async def _parse(parse: Callable[[bytes], T], body: bytes, pool: BoundedThreadPool) -> T:
    return await pool(parse, body) if len(body) > SMALL_BODY else parse(body)


def parse_form(body: bytes) -> list[tuple[str, Any]]:
    """Parse the fields of a form."""
    try:
        text = body.decode("utf-8", "replace")
        return [*parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)]
    except ValueError as error:
        raise HTTPError("Invalid form") from error


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8: parts are counted in bytes, which other encodings would escape."""
    if _has_more_parts(body, MAX_JSON_PARTS):
        raise HTTPError(f"Invalid request: the body has more than {MAX_JSON_PARTS} parts", 413)
    try:
        parsed = json.loads(body.decode("utf-8-sig"))
        if SURROGATE.search(body):  # lone ones cannot be encoded
            text = json.dumps(parsed, ensure_ascii=False)
            parsed = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
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
