"""Middleware of every request: limits of size and time, headers, errors, metrics, and the log."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.access.rate_limit import client_address
from regard.serve.http.errors import HTTPError
from regard.serve.http.request import FORM_SCOPE_KEY
from regard.serve.metrics import Metrics, log_event
from regard.serve.settings import Settings

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
DISCONNECTED = "regard.disconnected"  # key of the scope: the request was cancelled because its client has left
MAX_LOGGED_PATH = 200  # characters


def add_middleware(app: ASGIApp, settings: Settings, metrics: Metrics) -> ASGIApp:
    """Put the middleware around an application."""
    return CORSMiddleware(
        RequestGuard(app, settings, metrics),
        allow_origins=settings.cors or (() if settings.keys else ("*",)),
        allow_methods=("GET", "POST"),
        allow_headers=("Authorization", "Content-Type"),
        max_age=1728000,
    )


class RequestGuard:
    """ASGI middleware around the application, which answers every request, whatever happens."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started, method, prefix = time.perf_counter(), scope["method"], self.settings.url_prefix
        response = ResponseWriter(send)
        connection_scope = scope
        if method == "HEAD":  # answered like GET; uvicorn leaves the body out
            scope = {**scope, "method": "GET"}
        try:
            if scope["path"] == prefix:  # links on the page are relative to the last slash
                await RedirectResponse(f"{prefix}/")(scope, receive, response)
            elif not scope["path"].startswith(f"{prefix}/"):
                raise HTTPError("Not Found", 404)
            else:
                scope["root_path"] = prefix  # no part of the routes' paths
                await self.app(scope, self._limit_body(scope, receive), response)
        except HTTPError as error:
            await response.refuse(error, scope, receive)
        except asyncio.CancelledError:
            if DISCONNECTED not in connection_scope:
                await response.refuse(SHUTTING_DOWN, scope, receive)
        except Exception as error:
            log_event("failed", logging.ERROR, error, path=scope["path"])
            await response.refuse(HTTPError("Internal server error", 500), scope, receive)
        finally:
            if form := scope.get(FORM_SCOPE_KEY):
                await form.close()
            self._log_request(scope, method, response.status or CLIENT_CLOSED, time.perf_counter() - started)

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


class ResponseWriter:
    """ASGI `send` that adds the security headers to a response, and knows its status."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.status = 0  # until the response has begun

    async def __call__(self, message: Message) -> None:
        """Send one message of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await self.send(message)

    async def refuse(self, error: HTTPError, scope: Scope, receive: Receive) -> None:
        """Answer with an error, unless another response has begun."""
        if not self.status:
            await JSONResponse({"error": error.message}, error.status, error.headers)(scope, receive, self)
