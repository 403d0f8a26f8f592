"""The ASGI application: all routes, those for operators and the web page, the error handlers, and the middleware."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from regard.errors import UserError
from regard.serve.access.api_keys import bearer_token
from regard.serve.http.errors import HTTPError, OverloadedError
from regard.serve.http.middleware import add_middleware
from regard.serve.http.schemas import Error, describe_errors
from regard.serve.routes import documents, libretranslate, models
from regard.serve.service import Service
from regard.version import VERSION

PAGE = Path(__file__).parent / "page"


class Application(FastAPI):
    """FastAPI with an OpenAPI description that has the service's own error responses only."""

    def openapi(self) -> dict[str, Any]:
        """Describe the API: a parameter that cannot be read is a 400, not a 422."""
        description = super().openapi()
        for path in description["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            description["components"]["schemas"].pop(name, None)
        return description


def make_application(service: Service) -> ASGIApp:
    """Make the application with its middleware."""
    return add_middleware(make_routes(service), service.settings, service.metrics)


def make_routes(service: Service) -> Application:
    """Make the application without its middleware."""
    prefix = service.settings.url_prefix
    app = Application(
        title="regard",
        description="Translations with their attention; for LibreTranslate's clients, too.",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        servers=[{"url": prefix}] if prefix else None,
        redirect_slashes=False,
    )
    for routes in (libretranslate, documents, models):
        app.include_router(routes.make_router(service))
    _add_operation_routes(app, service)
    if service.settings.page:
        _add_page_routes(app, "index.html" if service.models.models else "ask.html")
    for kind in (HTTPError, UserError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


def _add_operation_routes(app: FastAPI, service: Service) -> None:
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
            if model.batcher.load >= model.batcher.max_waiting:
                raise OverloadedError(f"the queue of {model.name} is full")
        return {"status": "ready"}

    @app.get("/spec", include_in_schema=False)
    async def spec() -> dict[str, object]:
        """Return the API description, under LibreTranslate's name for it."""
        return app.openapi()


def _add_page_routes(app: FastAPI, index: str) -> None:
    """Add the web pages and their static files."""
    pages = {"/": index, "/ask": "ask.html", "/docs": "docs.html"}

    @app.get("/", include_in_schema=False)
    @app.get("/ask", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def page(request: Request) -> Response:
        """Return a page."""
        return FileResponse(PAGE / pages[request.scope["route"].path])

    app.mount("/page", StaticFiles(directory=PAGE), name="page")


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answer an error as LibreTranslate does: `{"error": message}`."""
    if isinstance(error, HTTPException):
        error = HTTPError(error.detail, error.status_code, error.headers)
    elif isinstance(error, RequestValidationError):
        names = ", ".join(str(one["loc"][-1]) for one in error.errors())
        error = HTTPError(f"Invalid request: {names} parameter cannot be read")
    elif isinstance(error, UserError):
        error = HTTPError(str(error))
    elif not isinstance(error, HTTPError):
        error = HTTPError("Internal server error", 500)
    return JSONResponse({"error": error.message}, error.status, error.headers)
