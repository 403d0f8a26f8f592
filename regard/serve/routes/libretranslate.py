"""Routes of LibreTranslate's API: translate, detect, languages, suggest, health and the settings of a page."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from regard.documents.document import list_supported_extensions
from regard.serve import schemas
from regard.serve.engine.background import run_on_texts
from regard.serve.engine.models import TranslationModel
from regard.serve.errors import HTTPError
from regard.serve.language_detection import AUTO, Detection, name_language, public_code
from regard.serve.schemas import describe_request, encode_json
from regard.serve.service import Service, describe_warnings, find_texts_with_letters
from regard.tokenizers.segmentation import split_words
from regard.translate import Options, Translation

FORMATS = ("text", "html")
MAX_WEIGHTS = 500**2  # of alignments in one response
MAX_SUGGESTIONS = 100_000_000  # bytes of their file


def make_router(service: Service) -> APIRouter:
    """Make the routes."""
    routes, suggestion_lock = APIRouter(tags=["LibreTranslate"]), asyncio.Lock()

    @routes.post("/translate", response_model=schemas.Translated, **describe_request(schemas.TranslateRequest))
    async def translate(request: Request) -> Response:
        """Translate text, or a list of texts."""
        # 1. The request: key, rate limits, parameters and sizes.
        parameters, client = await service.authorize_and_read(request, schemas.TranslateRequest)
        texts = [parameters.q] if isinstance(parameters.q, str) else parameters.q
        alternatives, limit = max(0, parameters.alternatives), service.settings.alternatives_limit
        if 0 <= limit < alternatives:
            raise HTTPError(f"Invalid request: alternatives parameter must be <= {limit}")
        service.check_sizes(texts, client)
        # 2. The languages, and the models between them; none if the texts have no letters.
        source, target, detection = await run_on_texts(
            texts, service.find_languages, parameters.source, parameters.target, texts
        )
        if parameters.format not in FORMATS:
            raise HTTPError(f"{parameters.format} format is not supported")
        is_empty = detection is not None and not await run_on_texts(texts, find_texts_with_letters, texts)
        route = [] if is_empty else _select_models(service, parameters.model, source, target)
        # 3. The translation, in batches with other requests.
        is_html = parameters.format == "html"
        if parameters.alignment and sum(len(split_words(text)) ** 2 for text in texts) > MAX_WEIGHTS:
            raise HTTPError(f"Invalid request: alignment is given for up to {math.isqrt(MAX_WEIGHTS)} words at a time")
        n_best = 1 + (0 if is_html else alternatives)
        beam = max(service.settings.beam, n_best)
        options = Options(beam=beam, n_best=n_best, tags=is_html, alignments=parameters.alignment)
        translations = await service.translate(texts, route, options)
        # 4. The response.
        body = await asyncio.to_thread(
            lambda: encode_json(make_response(translations, parameters, detection, alternatives))
        )
        return Response(body, media_type="application/json")

    @routes.post("/detect", response_model=list[schemas.DetectedLanguage], **describe_request(schemas.DetectRequest))
    async def detect(request: Request) -> Response:
        """Detect the language of a text."""
        parameters, client = await service.authorize_and_read(request, schemas.DetectRequest)
        texts = [parameters.q] if isinstance(parameters.q, str) else parameters.q
        service.check_sizes(texts, client)
        detections = await run_on_texts(texts, service.detect, "\n".join(texts))
        return JSONResponse([_detection_to_json(detection) for detection in detections])

    @routes.get("/languages", response_model=list[schemas.Language])
    async def languages() -> Response:
        """List the languages that are served, and what each can be translated to."""
        return JSONResponse(
            [
                {**name_language(code), "targets": list(map(public_code, service.models.list_targets(code)))}
                for code in service.models.languages
            ]
        )

    @routes.get("/health", response_model=schemas.Status)
    async def health() -> Response:
        """Tell that the service is alive."""
        return JSONResponse({"status": "ok"})

    @routes.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """Return the settings for a web page."""
        return _describe_settings(service)

    @routes.post("/suggest", response_model=schemas.Success, **describe_request(schemas.SuggestRequest))
    async def suggest(request: Request) -> Response:
        """Store a better translation."""
        values, client = await service.authorize(request)
        path = service.settings.suggestions
        if path is None:
            raise HTTPError("Suggestions are disabled on this server.", 403)
        suggestion = schemas.validate(schemas.SuggestRequest, values)
        texts = [suggestion.q, suggestion.s]
        service.check_sizes(texts, client)
        source, target, _ = await run_on_texts(
            texts, service.find_languages, suggestion.source, suggestion.target, texts[:1]
        )
        async with suggestion_lock:
            await asyncio.to_thread(_append_suggestion, path, {source: suggestion.q, target: suggestion.s})
        return JSONResponse({"success": True})

    return routes


def _describe_settings(service: Service) -> dict[str, Any]:
    """Return the settings that LibreTranslate's web page reads."""
    chosen = service.settings
    source, target = next(iter(service.models.pairs), (AUTO, "en"))
    return {
        "alternativesLimit": chosen.alternatives_limit,
        "apiKeys": chosen.keys is not None,
        "beam": chosen.beam,
        "charLimit": chosen.char_limit,
        "fileLimit": chosen.file_limit,
        "filesTranslation": chosen.files,
        "frontendTimeout": 500,
        "keyLink": chosen.key_link,
        "keyRequired": chosen.require_key,
        "language": {"source": name_language(source), "target": name_language(target)},
        "suggestions": chosen.suggestions is not None,
        "supportedFilesFormat": list_supported_extensions(),
    }


def _select_models(service: Service, name: str, source: str, target: str) -> list[TranslationModel]:
    """Return the models that translate one after the other; a model that is named translates alone."""
    if not name:
        return service.find_route(source, target)
    model = service.models.get(name)
    if (model.source, model.target) != (source, target):
        raise HTTPError(f"the model {name!r} translates from {model.source} to {model.target}")
    return [model]


def make_response(
    translations: list[Translation],
    parameters: schemas.TranslateRequest,
    detection: Detection | None = None,
    alternatives: int = 0,
) -> dict[str, Any]:
    """Build the response to a translation request; its values are lists if the request has a list."""

    def shape(values: list[Any]) -> Any:
        return values if isinstance(parameters.q, list) else values[0]

    response: dict[str, Any] = {"translatedText": shape([one.text for one in translations])}
    if detection is not None:
        response["detectedLanguage"] = shape([_detection_to_json(detection)] * len(translations))
    if alternatives:
        response["alternatives"] = shape([_list_alternatives(one)[:alternatives] for one in translations])
    if parameters.alignment:
        response["alignment"] = shape([_alignment_to_json(one) for one in translations])
    if warnings := describe_warnings(translations):
        response["warnings"] = warnings
    return response


def _list_alternatives(translation: Translation) -> list[str]:
    """Return the other translations, each once, none of them empty or the same as the first."""
    texts = dict.fromkeys(other.text for other in translation.alternatives)
    return [text for text in texts if text.strip() and text != translation.text]


def _alignment_to_json(translation: Translation) -> dict[str, Any] | None:
    """Return alignment and attention; None if the model has no attention."""
    alignment = translation.alignment
    if alignment is None:
        return None
    return {
        "source": alignment.source,
        "target": alignment.target,
        "source_offsets": alignment.source_spans or None,
        "target_offsets": alignment.target_spans or None,
        "pairs": [list(pair) for pair in alignment.pairs],
        "weights": alignment.soft,
        "tokens": {"source": translation.source_tokens, "target": translation.tokens, "weights": translation.attention},
    }


def _detection_to_json(detection: Detection) -> dict[str, Any]:
    return {"confidence": detection.confidence, "language": public_code(detection.language)}


def _append_suggestion(path: Path, pair: dict[str, str]) -> None:
    """Append a pair to a file that `regard train` reads, unless the file has grown too large."""
    if path.exists() and path.stat().st_size > MAX_SUGGESTIONS:
        raise HTTPError("No more suggestions are kept on this server.", 403)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(pair, ensure_ascii=False) + "\n")
