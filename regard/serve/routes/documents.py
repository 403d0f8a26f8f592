"""Routes to translate whole documents, and to download them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response

from regard.documents import DocumentLimits
from regard.documents.document import DOCUMENT_EXTENSIONS
from regard.documents.tagged_text import strip_placeholder_tags
from regard.serve import schemas
from regard.serve.access import count_requests
from regard.serve.engine.documents import Document
from regard.serve.errors import HTTPError
from regard.serve.language_detection import AUTO, Detection, public_code
from regard.serve.schemas import describe_request
from regard.serve.service import Client, Service, describe_warnings
from regard.translate import Options, Translation

TEXTS_AT_ONCE = 100  # texts of a document that wait together
DETECTION_TEXTS = 100  # of a document, that its language is detected from
MAX_TAGS = 500_000  # of a document: about half a gigabyte of memory
MAX_NAME = 100  # characters that are kept of a file's name


def make_router(service: Service) -> APIRouter:
    """Make the routes."""
    routes, store = APIRouter(tags=["LibreTranslate"]), service.file_store

    @routes.post(
        "/translate_file",
        response_model=schemas.TranslatedFile,
        **describe_request(schemas.FileRequest, (schemas.MULTIPART,)),
    )
    async def translate_file(request: Request) -> Response:
        """Translate a document; the response has the URL of the translation."""
        # 1. The request: key, rate limits, parameters.
        values, client = await service.authorize(request)
        if not service.settings.files:
            raise HTTPError("Files translation are disabled on this server.", 403)
        parameters = schemas.validate(schemas.FileRequest, values)
        # 2. The document, and space for its translation, which will be about as long.
        name, content = _make_safe_name(parameters.file.name), parameters.file.content
        if not content:
            raise HTTPError("Invalid request: empty file")
        if PurePosixPath(name).suffix.lower() not in DOCUMENT_EXTENSIONS:
            raise HTTPError("Invalid request: file format not supported")
        source, target = service.parse_languages(parameters.source, parameters.target)
        store.check_capacity(client.name, len(content))
        if source != AUTO:
            service.find_route(source, target)  # refused before anything is read
        # 3. The translation.
        limit, warnings = service.settings.file_limit, list[str]()
        limits = DocumentLimits(total_bytes=5 * limit, text_bytes=limit, tags=MAX_TAGS)
        document = Document(name, content, limits, (public_code(source), public_code(target)))
        translate = partial(_translate_texts, service, client, warnings, source, target)
        translated = await service.document_pool.translate(document, translate, warnings.append)
        # 4. The response: the file is stored for download.
        stored = await store.add(client.name, _name_translation(name, source, target), translated)
        response: dict[str, Any] = {"translatedFileUrl": f"{service.get_base_url(request)}download_file/{stored}"}
        return JSONResponse(response | ({"warnings": warnings} if warnings else {}))

    @routes.get(
        "/download_file/{name}",
        response_class=FileResponse,
        responses={404: {"model": schemas.Error, "description": "Not there, or no longer."}},
    )
    async def download_file(name: str) -> Response:
        """Download a translated document."""
        path = store.find(name)
        if path is None:
            raise HTTPException(404)
        return FileResponse(path, media_type="application/octet-stream", filename=name.partition(".")[2])

    return routes


async def _translate_texts(
    service: Service, client: Client, warnings: list[str], source: str, target: str, texts: Sequence[str]
) -> list[str]:
    """Translate the texts of a document, in batches with those of other requests.

    Each 1,000 characters begun count as a request of the client; the first was counted when the document came. The
    language is detected from the texts, not from the bytes of the document. Warnings about texts without translation
    and tags without alignment are appended to `warnings`.
    """
    client.check_lengths(texts, "a text of the file with entities and numbered tags")
    if (cost := count_requests(sum(map(len, texts)))) > 1:
        service.rate_limiter.consume(client.name, 0, client.quota, by_length=cost - 1, counted=1)

    def find_languages() -> tuple[str, str, Detection | None]:
        sample = texts[:DETECTION_TEXTS] if source == AUTO else ()
        return service.find_languages(source, target, list(map(strip_placeholder_tags, sample)))

    detected, target, _ = await asyncio.to_thread(find_languages)
    route = service.find_route(detected, target)
    options = Options(beam=service.settings.beam, tags=True, alignments=False)
    translated: list[Translation] = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        await asyncio.sleep(0)  # other requests are answered meanwhile, also if no text needs a model
        part = await service.translate(texts[start : start + TEXTS_AT_ONCE], route, options)
        # Without alignments, which take a hundred times the memory of the texts.
        translated += [replace(one, tokens=[], source_tokens=[], alignment=None) for one in part]
    warnings += describe_warnings(translated)
    return [one.text for one in translated]


def _name_translation(name: str, source: str, target: str) -> str:
    """Return the name of a translation: `a.docx` and `a.en.docx` both become `a.de.docx`."""
    path = PurePosixPath(name)
    return f"{path.stem.removesuffix(f'.{public_code(source)}')}.{public_code(target)}{path.suffix}"


def _make_safe_name(name: str) -> str:
    """Return the name of a file without folders, with other characters than letters, digits and ._- replaced."""
    name = name.replace("\\", "/").rpartition("/")[2]
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    return safe[-MAX_NAME:].lstrip(".") or "file"
