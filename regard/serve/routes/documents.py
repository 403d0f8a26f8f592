"""Files that are translated whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import PurePosixPath
from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response

from regard.documents import DOCUMENT_EXTENSIONS, DocumentLimits, strip_placeholder_tags
from regard.serve.access.api_keys import Key
from regard.serve.access.rate_limit import price
from regard.serve.http import schemas
from regard.serve.http.errors import Refusal
from regard.serve.http.schemas import refused
from regard.serve.language import AUTO, written
from regard.serve.service import Service
from regard.translate import Options, describe_unaligned_tags, describe_untranslated

AT_ONCE = 100  # texts of a file that wait together
FAR_TOO_LONG = 50  # times the limit: how long a text would be without tags is not told
DETECTED = 1_000_000  # characters of a file, with tags, that its language is detected from
TAGS = 500_000  # of a file: about half a gigabyte of memory
NAME = 100  # letters of a file's name that are kept
FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "source", "target"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "source": {"type": "string"},
                    "target": {"type": "string"},
                    "api_key": {"type": "string"},
                },
            }
        }
    },
}


def router(service: Service) -> APIRouter:
    """The routes for files."""
    routes, shelf = APIRouter(tags=["LibreTranslate"]), service.shelf

    @routes.post(
        "/translate_file",
        response_model=schemas.File,
        responses=refused(),
        openapi_extra={"requestBody": FORM},
    )
    async def translate_file(request: Request) -> Response:
        """Translate a document; the answer says where the translation can be fetched."""
        fields, key = await service.hear(request)
        if not service.settings.files:
            raise Refusal("Files translation are disabled on this server.", 403)
        file = fields.file("file")
        source, target = fields.text("source"), fields.text("target")
        name = plain_name(file)
        content = await file.read()
        await file.close()  # and with it what lies on the disk of a large one
        if not content:
            raise Refusal("Invalid request: empty file")
        if PurePosixPath(name).suffix.lower() not in DOCUMENT_EXTENSIONS:
            raise Refusal("Invalid request: file format not supported")
        pair = service.codes(source, target)
        owner = service.client(request, key)
        shelf.check(owner, len(content))  # its translation will be about as long
        warnings: list[str] = []
        made = await whole(service, pair, name, content, key, owner, warnings)
        place = await shelf.put(owner, renamed(name, *pair), made)
        answer: dict[str, Any] = {"translatedFileUrl": f"{service.base(request)}download_file/{place}"}
        return JSONResponse(answer | ({"warnings": warnings} if warnings else {}))

    @routes.get(
        "/download_file/{name}",
        response_class=FileResponse,
        responses={404: {"model": schemas.Error, "description": "Not there, or no longer."}},
    )
    async def download_file(name: str) -> Response:
        """A translated document."""
        path = shelf.get(name)
        if path is None:
            raise HTTPException(404)
        return FileResponse(path, media_type="application/octet-stream", filename=name.partition(".")[2])

    return routes


async def whole(
    service: Service,
    pair: tuple[str, str],
    name: str,
    content: bytes,
    key: Key | None,
    client: str,
    warnings: list[str],
) -> bytes:
    """A document, read and written in a process of its own; its texts are decoded together with what others ask for.

    Each 1,000 characters begun count as a request of the client; the first was counted when the document came.
    Sentences on texts without a translation and on tags without an alignment are appended to `warnings`.
    They are also what its language is guessed by: in the bytes there is more markup than language, or a zip file.
    """
    if pair[0] != AUTO:
        service.route(*pair)  # refused before anything is read
    loop, gone = asyncio.get_running_loop(), threading.Event()
    options = Options(beam=service.settings.beam, tags=True, alignments=False)

    async def charge(cost: int) -> None:
        service.limits.spend(client, 0, service.allowed(key), by_length=cost - 1, counted=1)

    def translate(texts: Sequence[str]) -> list[str]:
        made: list[str] = []
        check_text_lengths(service, texts, key)
        if (cost := price(sum(map(len, texts)))) > 1:
            service.asking(charge(cost), loop)
        plain = map(strip_placeholder_tags, take_characters(texts, DETECTED) if pair[0] == AUTO else ())
        spoken, wanted, _ = service.languages(*pair, list(plain))
        route = service.route(spoken, wanted)
        unaligned = untranslated = 0
        for start in range(0, len(texts), AT_ONCE):
            if gone.is_set():
                raise CancelledError
            asked = service.translate(texts[start : start + AT_ONCE], route, options)
            some = service.asking(asked, loop)
            made += [one.text for one in some]
            unaligned += sum(one.unaligned_tags > 0 for one in some)
            untranslated += sum(one.untranslated > 0 for one in some)
        if unaligned:
            warnings.append(describe_unaligned_tags(unaligned, len(texts)))
        if untranslated:
            warnings.append(describe_untranslated(untranslated, len(texts)))
        return made

    limit = service.settings.file_limit
    limits = DocumentLimits(total_bytes=5 * limit, text_bytes=limit, tags=TAGS)
    languages = written(pair[0]), written(pair[1])  # `auto` is no language: nothing differs from it
    try:
        return await service.documents.translate(name, content, translate, limits, warnings.append, languages)
    finally:
        gone.set()


def check_text_lengths(service: Service, texts: Sequence[str], key: Key | None) -> None:
    """Refuse longer texts than are taken, entities and numbered tags counted: they are decoded with them.

    Their removal takes long, and none is needed to refuse a text; only the message says if it is too long without them.
    """
    longest, limit = max(texts, key=len, default=""), service.char_limit(key)
    if 0 <= limit < len(longest) <= FAR_TOO_LONG * limit:
        service.check_lengths([strip_placeholder_tags(longest)], key, "a text of the file")
    service.check_lengths(texts, key, "a text of the file with entities and numbered tags")


def take_characters(texts: Sequence[str], characters: int) -> Iterator[str]:
    """Return the first texts, as many as have so many characters together, but at least one."""
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def renamed(name: str, source: str, target: str) -> str:
    """What its translation is called: `a.docx` and `a.en.docx` both become `a.de.docx`."""
    path = PurePosixPath(name)
    return f"{path.stem.removesuffix(f'.{written(source)}')}.{written(target)}{path.suffix}"


def plain_name(file: UploadFile) -> str:
    """What a file is called, without the folders it is said to lie in, in letters that do no harm."""
    name = (file.filename or "").replace("\\", "/").rpartition("/")[2]
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    return safe[-NAME:].lstrip(".") or "file"
