"""The routes that LibreTranslate's clients know."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from regard.documents import list_supported_extensions
from regard.serve.engine.models import Served
from regard.serve.http import schemas
from regard.serve.http.errors import Refusal
from regard.serve.http.request import Fields, encode_json, numbers
from regard.serve.http.schemas import asked
from regard.serve.language import AUTO, Guess, name, written
from regard.serve.service import Service, find_texts_with_words
from regard.translate import Options, Translation, describe_unaligned_tags, describe_untranslated

FORMATS = ("text", "html")
WEIGHTS = 500**2  # of attention that one answer may hold
ENOUGH = 100_000_000  # bytes of suggestions


def router(service: Service) -> APIRouter:
    """All of them."""
    routes, one_at_a_time = APIRouter(tags=["LibreTranslate"]), asyncio.Lock()

    @routes.post("/translate", response_model=schemas.Translated, **asked(schemas.TranslateRequest))
    async def translate(request: Request) -> Response:
        """Translate text, or a list of texts."""
        fields, key = await service.hear(request)
        texts, several = fields.texts("q")
        source, target = fields.text("source"), fields.text("target")
        alternatives = others(service, fields)
        service.check_sizes(texts, key)
        spoken, wanted, guess = await service.run_on_texts(texts, service.languages, source, target, texts)
        form = fields.text("format", "text")
        if form not in FORMATS:
            raise Refusal(f"{form} format is not supported")
        lost = guess is not None and not await service.run_on_texts(texts, find_texts_with_words, texts)
        route = [] if lost else chosen(service, fields.text("model", ""), spoken, wanted)
        aligned = fields.flag("alignment")
        if aligned and sum(len(text.split(maxsplit=math.isqrt(WEIGHTS))) ** 2 for text in texts) > WEIGHTS:
            raise Refusal(f"Invalid request: alignment is given for up to {math.isqrt(WEIGHTS)} words at a time")
        n_best = 1 + (alternatives if form == "text" else 0)
        beam = max(service.settings.beam, n_best)
        options = Options(beam=beam, n_best=n_best, tags=form == "html", alignments=aligned)
        made = await service.translate(texts, route, options)
        body = await asyncio.to_thread(lambda: encode_json(answer(made, several, guess, alternatives, aligned)))
        return Response(body, media_type="application/json")

    @routes.post("/detect", response_model=list[schemas.Detected], **asked(schemas.DetectRequest))
    async def detect(request: Request) -> Response:
        """Tell which language a text is in."""
        fields, key = await service.hear(request)
        texts, _ = fields.texts("q")
        service.check_sizes(texts, key)
        found = await service.run_on_texts(texts, service.detect, "\n".join(texts))
        return JSONResponse([detected(guess) for guess in found])

    @routes.get("/languages", response_model=list[schemas.Language])
    async def languages() -> Response:
        """The languages that are served, and what each can be translated to."""
        fleet = service.fleet
        return JSONResponse(
            [
                {
                    "code": written(language),
                    "name": name(language),
                    "targets": [written(target) for target in fleet.targets(language)],
                }
                for language in fleet.languages
            ]
        )

    @routes.get("/health", response_model=schemas.Status)
    async def health() -> Response:
        """Whether the service is alive."""
        return JSONResponse({"status": "ok"})

    @routes.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """What a page needs to know."""
        return frontend(service)

    @routes.post("/suggest", response_model=schemas.Success, **asked(schemas.SuggestRequest))
    async def suggest(request: Request) -> Response:
        """Keep a better translation that somebody suggests."""
        fields, key = await service.hear(request)
        place = service.settings.suggestions
        if place is None:
            raise Refusal("Suggestions are disabled on this server.", 403)
        q, s, source, target = (fields.text(name) for name in ("q", "s", "source", "target"))
        service.check_sizes([q, s], key)
        spoken, wanted, _ = await service.run_on_texts([q], service.languages, source, target, [q])
        async with one_at_a_time:
            await asyncio.to_thread(keep, place, {spoken: q, wanted: s})
        return JSONResponse({"success": True})

    return routes


def keep(place: Path, pair: dict[str, str]) -> None:
    """Adds a pair to a file that `regard train` reads; one that has grown too large takes no more."""
    if place.exists() and place.stat().st_size > ENOUGH:
        raise Refusal("No more suggestions are kept on this server.", 403)
    with place.open("a", encoding="utf-8") as file:
        file.write(json.dumps(pair, ensure_ascii=False) + "\n")


def others(service: Service, fields: Fields) -> int:
    """How many other translations are asked for."""
    count, limit = max(0, fields.number("alternatives", 0)), service.settings.alternatives_limit
    if 0 <= limit < count:
        raise Refusal(f"Invalid request: alternatives parameter must be <= {limit}")
    return count


def chosen(service: Service, name: str, spoken: str, target: str) -> list[Served]:
    """The way through the models; one that is named is gone through alone."""
    if not name:
        return service.route(spoken, target)
    served = service.named(name)
    if (served.source, served.target) != (spoken, target):
        raise Refusal(f"the model {name!r} translates from {served.source} to {served.target}")
    return [served]


def answer(
    made: list[Translation], several: bool, guess: Guess | None, alternatives: int, aligned: bool
) -> dict[str, Any]:
    """The answer to a request for translations."""

    def shaped(each: list[Any]) -> Any:
        return each if several else each[0]

    found: dict[str, Any] = {"translatedText": shaped([one.text for one in made])}
    if guess is not None:
        found["detectedLanguage"] = shaped([detected(guess)] * len(made))
    if alternatives:
        found["alternatives"] = shaped([distinct(one)[:alternatives] for one in made])
    if aligned:
        found["alignment"] = shaped([look(one) for one in made])
    warnings = []
    if unaligned := sum(one.unaligned_tags > 0 for one in made):
        warnings.append(describe_unaligned_tags(unaligned, len(made)))
    if untranslated := sum(one.untranslated > 0 for one in made):
        warnings.append(describe_untranslated(untranslated, len(made)))
    if warnings:
        found["warnings"] = warnings
    return found


def distinct(made: Translation) -> list[str]:
    """The other translations, each once, none of them empty or the first again."""
    seen = dict.fromkeys(other.text for other in made.alternatives)
    return [text for text in seen if text.strip() and text != made.text]


def look(made: Translation) -> dict[str, Any] | None:
    """Where the model looked; None where nobody can tell."""
    alignment = made.alignment
    if alignment is None:
        return None
    weights = None if made.attention is None else [numbers(row) for row in made.attention]
    return {
        "source": alignment.source,
        "target": alignment.target,
        "pairs": [list(pair) for pair in alignment.pairs],
        "weights": [numbers(row) for row in alignment.soft],
        "tokens": {"source": made.source_tokens, "target": made.tokens, "weights": weights},
    }


def detected(guess: Guess) -> dict[str, Any]:
    """A guess, as an answer has it."""
    return {"confidence": guess.confidence, "language": written(guess.language)}


def frontend(service: Service) -> dict[str, Any]:
    """The settings that a page asks for."""
    settings, fleet = service.settings, service.fleet
    source, target = next(iter(fleet.pairs), (AUTO, "en"))

    def named(language: str) -> dict[str, str]:
        return {"code": written(language), "name": name(language)}

    return {
        "alternativesLimit": settings.alternatives_limit,
        "apiKeys": settings.keys is not None,
        "beam": settings.beam,
        "charLimit": settings.char_limit,
        "fileLimit": settings.file_limit,
        "filesTranslation": settings.files,
        "frontendTimeout": 500,
        "keyLink": settings.key_link,
        "keyRequired": settings.require_key,
        "language": {"source": named(source), "target": named(target)},
        "suggestions": settings.suggestions is not None,
        "supportedFilesFormat": list_supported_extensions(),
    }
