"""How routes that read their requests themselves are described in OpenAPI."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from regard.serve.answers import Error

REASONS = {
    400: "What is asked for cannot be done; the text says why.",
    403: "Not allowed.",
    408: "The request took too long to arrive.",
    413: "The request is too large.",
    429: "Too many requests; Retry-After says when to come again.",
    500: "A mistake in the service.",
    503: "Too much is waiting; Retry-After says when to come again.",
}


def refused() -> dict[int | str, dict[str, Any]]:
    """The answers that say no."""
    return {status: {"model": Error, "description": reason} for status, reason in REASONS.items()}


def true(description: dict[str, Any]) -> dict[str, Any]:
    """The description without what FastAPI says of itself: a parameter that cannot be read is a 400 here."""
    for path in description["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        description["components"]["schemas"].pop(name, None)
    return description


def asked(model: type[BaseModel], forms: bool = True) -> dict[str, Any]:
    """What a route takes: JSON, and the same as a form."""
    schema = model.model_json_schema()
    kinds = ["application/json", *(["application/x-www-form-urlencoded", "multipart/form-data"] if forms else [])]
    content = {kind: {"schema": schema} for kind in kinds}
    return {"responses": refused(), "openapi_extra": {"requestBody": {"required": True, "content": content}}}
