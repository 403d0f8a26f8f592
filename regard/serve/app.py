"""The ASGI application: middleware of every request, all routes, those for operators and the web page, and errors."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.errors import UserError
from regard.serve.access import bearer_token, client_address
from regard.serve.connections import DISCONNECTED
from regard.serve.errors import HTTPError, OverloadedError
from regard.serve.metrics import Metrics, log_event
from regard.serve.routes import documents, libretranslate, models
from regard.serve.schemas import Error, describe_errors
from regard.serve.service import Service
from regard.serve.settings import Settings
from regard.version import VERSION

PAGE = Path(__file__).parent / "page"
SECURITY_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
CLIENT_CLOSED = 499  # status in the log for a request whose client left before it was answered
SHUTTING_DOWN = HTTPError(
    "The service is ending; try again in a moment", 503, {"Retry-After": "10", "Connection": "close"}
)
MAX_LOGGED_PATH = 200  # characters


def make_application(service: Service) -> ASGIApp:
    """Make the application with its middleware."""
    settings = service.settings
    return CORSMiddleware(
        RequestGuard(make_routes(service), settings, service.metrics),
        allow_origins=settings.cors or (() if settings.keys else ("*",)),
        allow_methods=("GET", "POST"),
        allow_headers=("Authorization", "Content-Type"),
        max_age=1728000,
    )


class RequestGuard:
    """ASGI middleware around the routes, which answers every request, whatever happens."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started, method, prefix = time.perf_counter(), scope["method"], self.settings.url_prefix
        connection_scope, status = scope, 0
        if method == "HEAD":  # answered like GET; uvicorn leaves the body out
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        async def refuse(error: Exception) -> None:
            if not status:  # no other response has begun
                await _make_error_response(error)(scope, receive, send_with_headers)

        try:
            if scope["path"] == prefix:  # links on the page are relative to the last slash
                await RedirectResponse(f"{prefix}/")(scope, receive, send_with_headers)
            elif not scope["path"].startswith(f"{prefix}/"):
                raise HTTPError("Not Found", 404)
            else:
                scope["root_path"] = prefix  # no part of the routes' paths
                await self.app(scope, self._limit_body(scope, receive), send_with_headers)
        except asyncio.CancelledError:
            if DISCONNECTED not in connection_scope:
                await refuse(SHUTTING_DOWN)
        except Exception as error:
            if not isinstance(error, HTTPError):
                log_event("failed", logging.ERROR, error, path=scope["path"])
            await refuse(error)
        finally:
            self._log_request(scope, method, status or CLIENT_CLOSED, time.perf_counter() - started)

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """Refuse a body that is too large, or takes too long to arrive."""
        is_file = scope["path"].endswith("/translate_file")
        limit = self.settings.file_limit if is_file else self.settings.body_limit
        too_large = HTTPError(f"Invalid request: the {'file' if is_file else 'body'} exceeds {limit} bytes", 413)
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        size, is_complete = 0, False
        deadline = time.monotonic() + self.settings.patience

        async def receive_limited() -> Message:
            nonlocal size, is_complete
            if is_complete:  # the only further message is that the client has left, at any time
                return await receive()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):  # unlike wait_for, it swallows no cancellation
                    message = await receive()
            except TimeoutError as error:
                raise HTTPError("The request took too long to arrive", 408, {"Connection": "close"}) from error
            size += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if size > limit:
                raise too_large
            return message

        return receive_limited

    def _log_request(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """Count and log a request by its route, or by the path that leads nowhere; never its text."""
        route = getattr(scope.get("route"), "path", None)
        label = route or "other"  # unknown paths must not make further time series
        self.metrics.requests.labels(label, str(status)).inc()
        self.metrics.seconds.labels(label).observe(seconds)
        client, path = client_address(scope, self.settings.trust_proxy), route or scope["path"][:MAX_LOGGED_PATH]
        log_event("request", method=method, path=path, status=status, ms=round(1000 * seconds, 1), client=client)


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
            raise HTTPError("Unauthorized", 401, {"WWW-Authenticate": "Bearer"})
        return Response(
            generate_latest(service.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

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

    async def page(request: Request) -> Response:
        return FileResponse(PAGE / pages[request.scope["route"].path])

    for path in pages:
        app.add_api_route(path, page, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")


async def _answer_error(request: Request, error: Exception) -> Response:
    return _make_error_response(error)


def _make_error_response(error: Exception) -> Response:
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
