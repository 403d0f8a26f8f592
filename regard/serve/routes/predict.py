"""Routes to models of other tasks: tagging, classification, reading, captioning, prediction of series."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from regard.serve.engine.models import PredictionModel, describe_run, get_prediction_model, summarize_served_run
from regard.serve.http import schemas
from regard.serve.http.errors import HTTPError
from regard.serve.http.request import replace_surrogates
from regard.serve.http.schemas import describe_errors, describe_request, encode_json, round_weights
from regard.serve.service import Service
from regard.tasks.base import Prediction

IMAGE = "image"  # its size is limited by that of the body, not of a text
MAX_DEPTH = 4  # of nested inputs


def make_router(service: Service) -> APIRouter:
    """Make the routes."""
    routes = APIRouter(prefix="/v1", tags=["regard"])

    @routes.get("/predictors", response_model=schemas.Predictors, responses=describe_errors())
    async def predictors(request: Request) -> Response:
        """List the models that tag, classify, read or caption."""
        await service.authorize_without_body(request)
        listed = [await service.file_pool(_describe_predictor, model) for model in service.predictors.values()]
        return JSONResponse({"predictors": listed})

    @routes.post(
        "/predict", response_model=schemas.Predicted, **describe_request(schemas.PredictRequest, (schemas.JSON,))
    )
    async def predict(request: Request) -> Response:
        """Predict for one input, or for several, and return the attention."""
        parameters, client = await service.authorize_and_read(request, schemas.PredictRequest)
        model = get_prediction_model(service.predictors, parameters.model)

        def check_inputs() -> list[Any]:
            inputs = parameters.q if isinstance(parameters.q, list) else [parameters.q]
            cleaned = [_clean_json(value) for value in inputs]
            service.check_sizes(list(map(_join_texts, cleaned)), client)
            return cleaned

        def predict_as_json() -> bytes:
            predictions = list(map(_prediction_to_json, model.predict(inputs)))
            return encode_json({"model": model.name, "task": model.task, "predictions": predictions})

        inputs = await service.text_pool(check_inputs)
        return Response(await service.prediction_pool(predict_as_json), media_type="application/json")

    return routes


def _describe_predictor(model: PredictionModel) -> dict[str, Any]:
    return describe_run(model.name, summarize_served_run(model.folder)) | {"task": model.task}


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
    return {"text": prediction.to_text(), **prediction.to_dict(), "looks": lines}


def _clean_json(value: Any, depth: int = 0) -> Any:
    """Replace lone surrogates in the texts of an input, and refuse one that is nested too deeply."""
    if depth > MAX_DEPTH:
        raise HTTPError("Invalid request: q parameter is nested too deeply")
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_clean_json(part, depth + 1) for part in value]
    if isinstance(value, dict):
        return {replace_surrogates(name): _clean_json(part, depth + 1) for name, part in value.items()}
    return value


def _join_texts(value: Any) -> str:
    """Join all texts of an input, so that their length can be checked."""
    if isinstance(value, dict):
        return "".join(_join_texts(part) for name, part in value.items() if name != IMAGE)
    if isinstance(value, list):
        return "".join(map(_join_texts, value))
    return value if isinstance(value, str) else ""
