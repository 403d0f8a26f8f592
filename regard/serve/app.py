"""The ASGI application: all routes, the error handlers, and the middleware around them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from regard.errors import UserError
from regard.serve.http.errors import HTTPError
from regard.serve.http.middleware import RequestGuard, normalize_prefix
from regard.serve.routes import documents, inspect, libretranslate, operations, predict
from regard.serve.service import Service
from regard.version import VERSION


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


def make_application(service: Service) -> RequestGuard:
    """Make the application with its middleware."""
    prefix = normalize_prefix(service.settings.url_prefix)
    app = Application(
        title="regard",
        description="Translations, and where the model looked; for LibreTranslate's clients, too.",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        servers=[{"url": prefix}] if prefix else None,
    )
    for routes in (libretranslate, documents, inspect, predict):
        app.include_router(routes.make_router(service))
    operations.add_operation_routes(app, service)
    if service.settings.page:
        operations.add_page_routes(app, "index.html" if service.models.models else "ask.html")
    for kind in (HTTPError, UserError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return RequestGuard(app, service.settings, service.metrics)


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
