"""The routes on which one sees what the models do."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from regard.runs import Run
from regard.search import PartialHypothesis, search_with_trace
from regard.serve.engine.models import Served, summarize_served
from regard.serve.engine.thread_pool import Aside, pause_between
from regard.serve.http import schemas
from regard.serve.http.errors import OverloadedError, Refusal
from regard.serve.http.request import Fields, encode_json, numbers
from regard.serve.http.schemas import asked, refused
from regard.serve.language import name, written
from regard.serve.service import Service
from regard.special_tokens import EOS
from regard.tokenizers import Tokenizer
from regard.translate import Options, compute_attention_by_head, trace_decoding
from regard.translate.translator import StreamedWord, stream_words

LONGEST = 400  # characters of a text that is looked at step by step
WIDEST = 12  # hypotheses of a beam that is looked at
MOST_ROWS = 2000  # measurements of one answer
TAIL = 100_000  # bytes at the end of the metrics that are read free of charge
BYTES_PER_REQUEST = 1_000_000  # of metrics, for the limits of requests
KIND, STEP = re.compile(rb'"kind": ?"([^"]*)"'), re.compile(rb'"step": ?(\d{1,18})')
T = TypeVar("T")
GREEDY = Options(beam=1, addresses=False)


def router(service: Service) -> APIRouter:
    """All of them."""
    routes = APIRouter(prefix="/v1", tags=["regard"])

    @routes.get("/models", response_model=schemas.Models, responses=refused())
    async def models(request: Request) -> Response:
        """The models that are served: recipe, sizes, scores."""
        await service.enter(request)
        found = [await service.reports(described, served) for served in service.fleet.served.values()]
        return JSONResponse({"models": found})

    @routes.get("/models/{model}/curves", response_model=schemas.Curves, responses=refused())
    async def curves(request: Request, model: str, after: int | None = None) -> Response:
        """What was measured while a model was trained, and is measured while it still is."""
        await service.enter(request)
        folder, after = service.run(model), -1 if after is None else after
        start = await service.reports(find_tail, folder, after)
        if start is None or after < 0:  # a client that follows a run reads its beginning once
            size = await service.reports(count_metrics_bytes, folder)
            await service.enter(request, cost=1, by_length=math.ceil(size / BYTES_PER_REQUEST))
        body = await service.reports(lambda: encode_json(measured(folder, after, start or 0)))
        return Response(body, media_type="application/json")

    @routes.post("/trace", response_model=schemas.Trace, **asked(schemas.LookRequest))
    async def trace(request: Request) -> Response:
        """One decoding, step by step: the beam, the state, the weights, the context."""
        served, text, fields = await looked_at(service, request)
        beam = fields.number("beam", min(service.settings.beam, WIDEST))
        if not 1 <= beam <= WIDEST:
            raise Refusal(f"Invalid request: beam parameter must be from 1 to {WIDEST}")
        body = await service.looks(lambda: encode_json(seen(served, text, beam)))
        return Response(body, media_type="application/json")

    @routes.post(
        "/translate/stream",
        response_class=StreamingResponse,
        **asked(schemas.LookRequest),
    )
    async def stream(request: Request) -> Response:
        """A translation word by word as it is decoded, as server-sent events: word, …, end."""
        served, text, _ = await looked_at(service, request)
        made = events(service.looks, stream_words(served.translator, text), text)
        return StreamingResponse(made, media_type="text/event-stream")

    return routes


async def looked_at(service: Service, request: Request) -> tuple[Served, str, Fields]:
    """The model and the text that somebody wants to look at."""
    fields, key = await service.hear(request)
    text = fields.text("q")
    service.check_sizes([text], key)
    if len(text) > LONGEST:
        raise Refusal(f"Invalid request: request ({len(text)}) exceeds text limit ({LONGEST})")
    named = fields.text("model", "")
    if named or not fields.text("target", ""):
        return service.named(named), text, fields
    spoken, target, _ = service.languages(fields.text("source", "auto"), fields.text("target"), [text])
    route = service.route(spoken, target)
    if len(route) != 1:
        raise Refusal(f"one model at a time can be looked at; from {spoken} to {target} there are {len(route)}")
    return route[0], text, fields


async def events(aside: Aside, made: Iterator[StreamedWord], source: str) -> AsyncIterator[bytes]:
    """Words as they come, each an event; then the whole."""
    yield event("start", {"source": source.split()})
    text = ""
    try:
        while (word := await aside(next, made, None)) is not None:
            text += word.before + word.text
            if word.text:
                yield event("word", {"before": word.before, "word": word.text, "weights": numbers(word.weights)})
    except OverloadedError as error:
        yield event("error", {"error": error.text})
        return
    yield event("end", {"translatedText": text})


def event(kind: str, data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def described(served: Served) -> dict[str, Any]:
    """A model, as far as its run tells."""
    known, decoder = summarize_served(served.folder), served.translator.models[0].decoder
    best, points = known.best, decoder.alignment_heads()
    tokenizers = served.translator.tokenizers
    return {
        "name": served.name,
        "source": {"code": written(served.source), "name": name(served.source)},
        "target": {"code": written(served.target), "name": name(served.target)},
        "recipe": known.recipe,
        "parameters": known.parameters,
        "vocabularies": [tokenizers.source.vocab_size, tokenizers.target.vocab_size],
        "order": list(decoder.computation_order),
        "attention": "a_t" in decoder.computation_order,
        "heads": max((point.head or 0 for point in points), default=-1) + 1 or None,
        "layers": max((point.layer for point in points), default=-1) + 1 or None,
        "scores": {
            "bleu": None,
            "loss": best and best.loss,
            "perplexity": best and best.perplexity,
        }
        | ({best.measure: best.score} if best else {}),
        "steps": known.steps,
        "epochs": known.epochs,
        "seconds": known.seconds,
        "finished": known.finished,
    }


def measured(folder: Path, after: int, start: int = 0) -> dict[str, Any]:
    """The measurements of a run behind a step; of many, some at regular distances, and no others are parsed.

    They are read from a byte on behind which all of them are, see `find_tail`.
    """
    run = Run(folder)
    lines: list[tuple[bytes, int, bytes]] = []
    for number, line in enumerate(read_lines(run.metrics_path, start), 1):
        kind, step = KIND.search(line), STEP.search(line)
        if step is None or int(step[1]) > after:
            lines.append((kind[1] if kind else b"", number, line))
    rows = [run.parse_metrics_line(line, number) for _, number, line in thin_out(lines, MOST_ROWS, itemgetter(0))]
    return {
        "rows": [finite(row) for row in rows if row["step"] > after],
        "finished": summarize_served(folder).finished,
    }


def read_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Return the complete lines of a file that begin at a byte or behind it."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        yield from (line for line in pause_between(file) if line.endswith(b"\n"))


def find_tail(folder: Path, after: int) -> int | None:
    """Return the byte of the metrics behind which all rows after a step are; None if they are not near the end."""
    path = Run(folder).metrics_path
    start = max(0, count_metrics_bytes(folder) - TAIL)
    step = STEP.search(next(read_lines(path, start), b""))
    return start if not start or (step and int(step[1]) <= after) else None


def count_metrics_bytes(folder: Path) -> int:
    """Return the size of the metrics of a run."""
    path = Run(folder).metrics_path
    return path.stat().st_size if path.is_file() else 0


def thin_out(rows: Sequence[T], most: int, kind: Callable[[Any], Any] = itemgetter("kind")) -> list[T]:
    """Return at most so many rows: of each kind, the first, the last, and some at regular distances."""
    if len(rows) <= most:
        return list(rows)
    kinds: dict[Any, list[int]] = {}
    for number, row in enumerate(rows):
        kinds.setdefault(kind(row), []).append(number)
    kept: set[int] = set()
    for numbered in kinds.values():
        count = min(len(numbered), max(2, most // len(kinds)))
        kept.update(numbered[step * (len(numbered) - 1) // max(1, count - 1)] for step in range(count))
    return [rows[number] for number in sorted(kept)]


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity; what is not a number is left open."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def seen(served: Served, text: str, beam: int) -> dict[str, Any]:
    """One decoding, looked at from all sides; of a text in several pieces, that of the first."""
    translator = served.translator
    pieces = translator.prepare_texts([text], translator.compile_options(GREEDY)).encoded_segments
    spoken = [piece.ids for piece in pieces if piece.ids]
    target, order = translator.tokenizers.target, list(translator.models[0].decoder.computation_order)
    whole = {
        "model": served.name,
        "order": order,
        "pieces": len(spoken),
        "source": [],
        "text": text,
        "steps": [],
    }
    if not spoken:
        return whole
    ids = spoken[0]
    best, beams = search_with_trace(translator.models, *translator.make_batch([ids]), beam=beam)
    made = best[0].tokens
    looks = compute_attention_by_head(translator, ids, made)
    found = [
        {
            "token": step.token,
            "candidates": [{"token": token, "probability": round(chance, 5)} for token, chance in step.candidates],
            "beam": [opened(one, target) for one in kept],
            "weights": numbers(step.weights),
            "heads": {head: numbers(look[number]) for head, look in looks.items()},
            "window": step.window,
            "context": numbers(step.context),
            "state": numbers(step.state),
            "attentional": numbers(step.attentional),
        }
        for number, (step, kept) in enumerate(zip(trace_decoding(translator, ids, made), beams, strict=False))
    ]
    source = translator.tokenizers.source.convert_ids_to_tokens([*ids, EOS])
    return {**whole, "source": source, "text": target.decode(made), "steps": found}


def opened(one: PartialHypothesis, target: Tokenizer) -> dict[str, Any]:
    """A hypothesis of the beam."""
    return {
        "text": target.decode(one.tokens),
        "token": target.convert_ids_to_tokens(one.tokens[-1:])[0],
        "log_prob": round(one.log_prob, 4),
        "ended": one.tokens[-1] == EOS,
    }
