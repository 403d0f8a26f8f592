"""The routes to models that do something else than translate."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from regard.serve.http import schemas
from regard.serve.http.errors import Refusal, missing
from regard.serve.http.request import encode_json, sound
from regard.serve.http.schemas import asked, refused
from regard.serve.service import Service

IMAGE = "image"  # whose size the limit of the body bounds, and not that of a text


def router(service: Service) -> APIRouter:
    """All of them."""
    routes = APIRouter(prefix="/v1", tags=["regard"])

    @routes.get("/predictors", response_model=schemas.Predictors, responses=refused())
    async def predictors(request: Request) -> Response:
        """The models that tag, classify, read or caption."""
        await service.enter(request)
        found = [await service.reports(hand.described) for hand in service.crew.hands.values()]
        return JSONResponse({"predictors": found})

    @routes.post("/predict", response_model=schemas.Predicted, **asked(schemas.PredictRequest, forms=False))
    async def predict(request: Request) -> Response:
        """What a model makes of one input, or of several, and where it looked."""
        fields, key = await service.hear(request)
        hand = service.crew.named(fields.text("model", ""))
        given = fields.values.get("q")
        if given is None:
            raise missing("q")

        def check_inputs() -> list[Any]:
            several = [whole(one) for one in (given if isinstance(given, list) else [given])]
            service.check_sizes([spoken(one) for one in several], key)
            return several

        several = await service.texts(check_inputs)

        def predict_as_json() -> bytes:
            made = hand.predict(several)
            return encode_json({"model": hand.name, "task": hand.task, "predictions": made})

        return Response(await service.crew.work(predict_as_json), media_type="application/json")

    return routes


def whole(value: Any) -> Any:
    """What JSON held, with text that can be written; nested no deeper than any input is."""

    def cleaned(part: Any, depth: int) -> Any:
        if depth > 4:
            raise Refusal("Invalid request: q parameter is nested too deeply")
        if isinstance(part, str):
            return sound(part)
        if isinstance(part, list):
            return [cleaned(one, depth + 1) for one in part]
        if isinstance(part, dict):
            return {sound(name): cleaned(one, depth + 1) for name, one in part.items()}
        return part

    return cleaned(value, 0)


def spoken(value: Any) -> str:
    """All text of an input, to be measured."""
    if isinstance(value, dict):
        return "".join(spoken(part) for name, part in value.items() if name != IMAGE)
    if isinstance(value, list):
        return "".join(map(spoken, value))
    return value if isinstance(value, str) else ""
