"""Routes to single models: their runs, training curves, one decoding step by step, predictions for other tasks."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from operator import itemgetter
from os import SEEK_END
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from regard.errors import UserError
from regard.runs import Run
from regard.search.scoring import PartialHypothesis, search_with_trace
from regard.serve import schemas
from regard.serve.engine.background import BoundedThreadPool
from regard.serve.engine.models import PredictionModel, TranslationModel, summarize_served_run
from regard.serve.errors import HTTPError, OverloadedError
from regard.serve.language_detection import AUTO, name_language
from regard.serve.schemas import describe_errors, describe_request, encode_json, round_weights
from regard.serve.service import Service
from regard.special_tokens import EOS
from regard.tasks.base import Prediction
from regard.tokenizers.segmentation import split_words
from regard.tokenizers.tokenizer import Tokenizer
from regard.translate import Options
from regard.translate.inspection import compute_attention_by_head, trace_decoding
from regard.translate.translator import StreamedWord, stream_words

MAX_CHARACTERS = 400  # of a text that is inspected
MAX_BEAM = 12
IMAGE = "image"  # its size is limited by that of the body, not of a text
MAX_ROWS = 2000  # metrics of one response
RECENT = 200_000  # bytes of metrics, a thousand rows or more, that those who follow a run may read for free
KIND, STEP = re.compile(rb'"kind": ?"([^"]*)"'), re.compile(rb'"step": ?(\d{1,18})')
T = TypeVar("T")
GREEDY = Options(beam=1, addresses=False)


def make_router(service: Service) -> APIRouter:
    """Make the routes."""
    routes = APIRouter(prefix="/v1", tags=["regard"])

    @routes.get("/models", response_model=schemas.Models, responses=describe_errors())
    async def models(request: Request) -> Response:
        """List the models that translate: recipe, sizes, scores."""
        await service.authorize_without_body(request)
        listed = [await service.file_pool(describe_model, model) for model in service.models.models.values()]
        return JSONResponse({"models": listed})

    @routes.get("/models/{model}/curves", response_model=schemas.TrainingCurves, responses=describe_errors())
    async def curves(request: Request, model: str, after: Annotated[int | None, Query(ge=0)] = None) -> Response:
        """Return the metrics of training, also while a run is still training."""
        client = await service.authorize_without_body(request)
        folder = service.models.find_run(model)
        recent = None if after is None else await service.file_pool(read_recent_metrics, Run(folder), after)
        if recent is None:  # following a run is free
            service.rate_limiter.consume(client.name, 1, client.quota)
        body = await service.file_pool(lambda: encode_json(read_training_curves(folder, after, recent)))
        return Response(body, media_type="application/json")

    @routes.post("/trace", response_model=schemas.Trace, **describe_request(schemas.InspectRequest))
    async def trace(request: Request) -> Response:
        """Return one decoding step by step: the beam, the state, the attention weights, the context."""
        model, parameters = await _read_inspect_request(service, request)
        beam = min(service.settings.beam, MAX_BEAM) if parameters.beam is None else parameters.beam
        if not 1 <= beam <= MAX_BEAM:
            raise HTTPError(f"Invalid request: beam parameter must be from 1 to {MAX_BEAM}")
        body = await service.inspection_pool(lambda: encode_json(_trace_decoding(model, parameters.q, beam)))
        return Response(body, media_type="application/json")

    @routes.post("/translate/stream", response_class=StreamingResponse, **describe_request(schemas.InspectRequest))
    async def stream(request: Request) -> Response:
        """Return a translation word by word as it is decoded, as server-sent events: start, word, …, end."""
        model, parameters = await _read_inspect_request(service, request)
        words = stream_words(model.translator, parameters.q)
        events = _iterate_events(service.inspection_pool, words, parameters.q)
        return StreamingResponse(events, media_type="text/event-stream")

    @routes.get("/predictors", response_model=schemas.Predictors, responses=describe_errors())
    async def predictors(request: Request) -> Response:
        """List the models that tag, classify, read or caption."""
        await service.authorize_without_body(request)
        listed = [
            {**await service.file_pool(describe_run, model), "task": model.task}
            for model in service.models.predictors.values()
        ]
        return JSONResponse({"predictors": listed})

    @routes.post(
        "/predict", response_model=schemas.Predicted, **describe_request(schemas.PredictRequest, (schemas.JSON,))
    )
    async def predict(request: Request) -> Response:
        """Predict for one input, or for several, and return the attention."""
        parameters, client = await service.authorize_and_read(request, schemas.PredictRequest)
        model = service.models.get_predictor(parameters.model)

        inputs = parameters.q if isinstance(parameters.q, list) else [parameters.q]
        service.check_sizes(list(map(_join_texts, inputs)), client)

        def predict_as_json() -> bytes:
            made = model.predictor.predict(list(map(model.predictor.parse_json_input, inputs)))
            return encode_json(
                {"model": model.name, "task": model.task, "predictions": list(map(_prediction_to_json, made))}
            )

        return Response(await service.prediction_pool(predict_as_json), media_type="application/json")

    return routes


async def _read_inspect_request(service: Service, request: Request) -> tuple[TranslationModel, schemas.InspectRequest]:
    """Return the parameters of a request, and the model that they name or that translates between their languages."""
    parameters, client = await service.authorize_and_read(request, schemas.InspectRequest)
    service.check_sizes([parameters.q], client)
    if len(parameters.q) > MAX_CHARACTERS:
        raise HTTPError(f"Invalid request: request ({len(parameters.q)}) exceeds text limit ({MAX_CHARACTERS})")
    if parameters.model or not parameters.target:
        return service.models.get(parameters.model), parameters
    source, target, _ = service.find_languages(parameters.source or AUTO, parameters.target, [parameters.q])
    route = service.find_route(source, target)
    if len(route) != 1:
        raise HTTPError(f"one model at a time can be inspected; from {source} to {target} there are {len(route)}")
    return route[0], parameters


async def _iterate_events(pool: BoundedThreadPool, words: Iterator[StreamedWord], source: str) -> AsyncIterator[bytes]:
    """Yield an event for each word when it is known, then one for the whole translation."""
    yield _to_event("start", {"source": split_words(source)})
    text = ""
    try:
        while (word := await pool(next, words, None)) is not None:
            text += word.before + word.text
            if word.text:
                weights = round_weights(word.weights)
                yield _to_event("word", {"before": word.before, "word": word.text, "weights": weights})
    except OverloadedError as error:
        yield _to_event("error", {"error": error.message})
        return
    yield _to_event("end", {"translatedText": text})


def _to_event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def describe_run(model: TranslationModel | PredictionModel) -> dict[str, Any]:
    """Return what responses say about every run."""
    summary = summarize_served_run(model.folder)
    best = summary.best
    return {
        "name": model.name,
        "recipe": summary.recipe,
        "parameters": summary.parameters,
        "scores": {best.measure: best.score, "loss": best.loss} if best else {},
        "steps": summary.steps,
        "finished": summary.finished,
    }


def describe_model(model: TranslationModel) -> dict[str, Any]:
    """Describe a model by its decoder and the summary of its run."""
    summary, decoder = summarize_served_run(model.folder), model.translator.models[0].decoder
    heads, tokenizers = decoder.alignment_heads(), model.translator.tokenizers
    description = describe_run(model)
    scores = {"bleu": None, "loss": None, "perplexity": summary.best and summary.best.perplexity}
    return {
        **description,
        "source": name_language(model.source),
        "target": name_language(model.target),
        "vocabularies": [tokenizers.source.vocab_size, tokenizers.target.vocab_size],
        "order": list(decoder.computation_order),
        "attention": "a_t" in decoder.computation_order,
        "heads": max((head.head or 0 for head in heads), default=-1) + 1 or None,
        "layers": max((head.layer for head in heads), default=-1) + 1 or None,
        "scores": scores | description["scores"],
        "epochs": summary.epochs,
        "seconds": summary.seconds,
    }


def read_recent_metrics(run: Run, after: int) -> bytes | None:
    """Read the end of the metrics of a run; None if what was measured after a step may begin before it."""
    if not run.metrics_path.is_file():
        return b""
    with run.metrics_path.open("rb") as file:
        start = max(0, file.seek(0, SEEK_END) - RECENT)
        file.seek(start)
        recent = file.read().partition(b"\n")[2] if start else file.read()
    first = STEP.search(recent)
    return recent if not start or (first and int(first[1]) <= after) else None


def read_training_curves(folder: Path, after: int | None = None, recent: bytes | None = None) -> dict[str, Any]:
    """Read the metrics of a run after a step; of many, some at regular distances, and only these are parsed.

    `recent` is the end of the metrics if that is enough.
    """
    run, first = Run(folder), -1 if after is None else after + 1
    content = recent
    if content is None:
        content = run.metrics_path.read_bytes() if run.metrics_path.is_file() else b""
    lines: list[tuple[bytes, int, bytes]] = []
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        kind, step = KIND.search(line), STEP.search(line)
        if line.endswith(b"\n") and (step is None or int(step[1]) >= first):
            lines.append((kind[1] if kind else b"", number, line))
    try:
        rows = [run.parse_metrics_line(line, number) for _, number, line in thin_out(lines, MAX_ROWS, itemgetter(0))]
    except UserError:
        if recent is None:
            raise
        return read_training_curves(folder, after)  # for the number of the wrong line in the file
    return {
        "rows": [row for row in rows if row["step"] >= first],
        "finished": summarize_served_run(folder).finished,
    }


def thin_out(rows: Sequence[T], limit: int, kind: Callable[[Any], Any] = itemgetter("kind")) -> list[T]:
    """Return at most `limit` rows: of each kind, the first, the last, and some at regular distances."""
    if len(rows) <= limit:
        return list(rows)
    kinds: dict[Any, list[int]] = {}
    for index, row in enumerate(rows):
        kinds.setdefault(kind(row), []).append(index)
    selected: set[int] = set()
    for indices in kinds.values():
        count = min(len(indices), max(2, limit // len(kinds)))
        selected.update(indices[step * (len(indices) - 1) // max(1, count - 1)] for step in range(count))
    return [rows[index] for index in sorted(selected)]


def _trace_decoding(model: TranslationModel, text: str, beam: int) -> dict[str, Any]:
    """Decode a text and return everything about each step; of a text in several segments, those of the first."""
    translator = model.translator
    segments = translator.prepare_texts([text], translator.compile_options(GREEDY)).encoded_segments
    inputs = [segment.ids for segment in segments if segment.ids]
    tokenizers, order = translator.tokenizers, list(translator.models[0].decoder.computation_order)
    trace: dict[str, Any] = {"model": model.name, "order": order, "pieces": len(inputs)}
    if not inputs:
        return {**trace, "source": [], "text": text, "steps": []}
    ids = inputs[0]
    best, beams = search_with_trace(translator.models, *translator.make_batch([ids]), beam=beam)
    output = best[0].tokens
    attention = compute_attention_by_head(translator, ids, output)
    steps = [
        {
            **step._asdict(),
            "candidates": [{"token": token, "probability": round(number, 5)} for token, number in step.candidates],
            "beam": [_hypothesis_to_json(hypothesis, tokenizers.target) for hypothesis in hypotheses],
            "heads": {head: weights[position] for head, weights in attention.items()},
        }
        for position, (step, hypotheses) in enumerate(zip(trace_decoding(translator, ids, output), beams, strict=False))
    ]
    source = tokenizers.source.convert_ids_to_tokens([*ids, EOS])
    return {**trace, "source": source, "text": tokenizers.target.decode(output), "steps": steps}


def _hypothesis_to_json(hypothesis: PartialHypothesis, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "text": tokenizer.decode(hypothesis.tokens),
        "token": tokenizer.convert_ids_to_tokens(hypothesis.tokens[-1:])[0],
        "log_prob": round(hypothesis.log_prob, 4),
        "ended": hypothesis.tokens[-1] == EOS,
    }


def _prediction_to_json(prediction: Prediction) -> dict[str, Any]:
    lines = [
        {
            "label": line.label,
            "words": list(line.words),
            "weights": round_weights(line.weights),
            "weight": line.weight,
            "darkest": line.darkest_weight,
        }
        for line in prediction.make_attention_lines()
    ]
    return {"text": prediction.to_text(), **prediction.to_dict(), "attention_lines": lines}


def _join_texts(value: Any) -> str:
    """Join all texts of an input, however deeply nested, so that their length can be checked."""
    texts, parts = list[str](), [value]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            parts += [inner for name, inner in part.items() if name != IMAGE]
    return "".join(texts)
