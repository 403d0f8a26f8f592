"""Routes for operators, and the web page: metrics, readiness, the API description, static files."""

from __future__ import annotations

import hmac
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from regard.serve.access.api_keys import bearer_token
from regard.serve.http.errors import OverloadedError
from regard.serve.http.schemas import Error, describe_errors
from regard.serve.service import Service

PAGE = Path(__file__).parent.parent / "page"


def add_operation_routes(app: FastAPI, service: Service) -> None:
    """Add the routes for operators."""
    token = service.settings.metrics_token

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={401: {"model": Error, "description": "The token is wrong."}},
        tags=["operation"],
    )
    async def metrics(request: Request) -> Response:
        """Return metrics for Prometheus."""
        given = bearer_token(request.headers).encode("utf-8", "replace")
        if token and not hmac.compare_digest(given, token.encode()):
            return JSONResponse({"error": "Unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
        return Response(service.metrics.to_text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/ready", responses=describe_errors(), tags=["operation"])
    async def ready() -> dict[str, str]:
        """Tell whether the service can accept more requests."""
        for model in service.models.models.values():
            if not model.decoder.is_available:
                raise OverloadedError(f"no decoder process of {model.name} runs", "The decoder restarts")
            if model.batcher.waiting >= model.batcher.max_waiting:
                raise OverloadedError(f"the queue of {model.name} is full")
        return {"status": "ready"}

    @app.get("/spec", include_in_schema=False)
    async def spec() -> dict[str, object]:
        """Return the API description, under LibreTranslate's name for it."""
        return app.openapi()


def add_page_routes(app: FastAPI, index: str) -> None:
    """Add the web pages and their static files."""
    pages = {"/": index, "/ask": "ask.html", "/docs": "docs.html"}

    @app.get("/", include_in_schema=False)
    @app.get("/ask", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def page(request: Request) -> Response:
        """Return a page."""
        return FileResponse(PAGE / pages[request.scope["route"].path])

    app.mount("/page", StaticFiles(directory=PAGE), name="page")
