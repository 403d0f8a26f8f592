"""Middleware of every request: limits of size and time, headers, errors, metrics, and the log."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit, urlunsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.errors import UserError
from regard.serve.access.rate_limit import client_address
from regard.serve.http.errors import HTTPError
from regard.serve.http.request import FORM_SCOPE_KEY
from regard.serve.metrics import Metrics, log_event
from regard.serve.settings import Settings

CORS_HEADERS = {
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Expose-Headers": "Authorization",
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Max-Age": "1728000",
}
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
TOO_MANY_CONNECTIONS = HTTPError(
    "Too many connections; try again in a moment", 503, {"Retry-After": "2", "Connection": "close"}
)
# Keys of the scope, which the connection of a request sets.
BEYOND_LIMIT = "regard.beyond_connection_limit"  # it is to be refused
DISCONNECTED = "regard.disconnected"  # it was cancelled because its client has left
MAX_LOGGED_PATH = 200  # characters
ORIGIN = re.compile(r"https?://[^/\s]+|\*")
URL_PREFIX = re.compile(r"(?:/[\w.~-]+)+")


class RequestGuard:
    """ASGI middleware around the whole application, which answers every request, whatever happens."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics
        self.prefix = normalize_prefix(settings.url_prefix)
        self.origins = _parse_origins(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started, method = time.perf_counter(), scope["method"]
        response = ResponseWriter(send, self._make_headers(scope), has_body=method != "HEAD")
        connection_scope = scope
        if method == "HEAD":  # answered like GET, without a body
            scope = {**scope, "method": "GET"}
        try:
            if BEYOND_LIMIT in scope:
                await response.refuse(TOO_MANY_CONNECTIONS, scope, receive)
            elif method == "OPTIONS":
                await JSONResponse({})(scope, receive, response)
            elif scope["path"] == self.prefix:  # links on the page are relative to the last slash
                await RedirectResponse(f"{self.prefix}/")(scope, receive, response)
            elif not scope["path"].startswith(f"{self.prefix}/"):
                raise HTTPError("Not Found", 404)
            else:
                scope["root_path"] = self.prefix  # no part of the routes' paths
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

    def _make_headers(self, scope: Scope) -> dict[str, str]:
        """Return the headers of every response; those of CORS if the page that asks may use the service."""
        headers = dict(SECURITY_HEADERS)
        if "*" in self.origins:
            headers |= CORS_HEADERS | {"Access-Control-Allow-Origin": "*"}
        elif self.origins:
            headers["Vary"] = "Origin"
            if (origin := Headers(scope=scope).get("origin")) in self.origins:
                headers |= CORS_HEADERS | {"Access-Control-Allow-Origin": origin}
        return headers

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


def normalize_prefix(prefix: str) -> str:
    """Return a URL prefix with a slash at its beginning and none at its end; empty if there is none."""
    normalized = f"/{prefix.strip('/')}" if prefix.strip("/") else ""
    if normalized and not URL_PREFIX.fullmatch(normalized):
        raise UserError(f"--url-prefix is a path like /translate, not {prefix!r}")
    return normalized


def _parse_origins(settings: Settings) -> frozenset[str]:
    """Return the origins of web pages that may use the service: those of --cors, or all if there are no keys."""
    for origin in settings.cors:
        if not ORIGIN.fullmatch(origin):
            raise UserError(f"--cors is an origin like https://example.org, without a path, or *; not {origin!r}")
    return frozenset(settings.cors or (() if settings.keys else ("*",)))


class ResponseWriter:
    """ASGI `send` that adds headers to a response, and turns errors that are not JSON into JSON."""

    def __init__(self, send: Send, headers: Mapping[str, str], has_body: bool) -> None:
        self.send = send
        self.headers = headers
        self.has_body = has_body
        self.status = 0  # until the response has begun
        self.replaced_start: Message | None = None  # the beginning of an error that is not JSON, as of a file's range

    async def __call__(self, message: Message) -> None:
        """Send one message of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=[(name.lower(), value) for name, value in message.get("headers", [])])
            if self.status >= 400 and not headers.get("content-type", "").startswith("application/json"):
                self.replaced_start = {**message, "headers": headers.raw}
                return
            if location := headers.get("location"):
                headers["location"] = _remove_host(location)
            for name, value in self.headers.items():
                headers.setdefault(name, value)
            message = {**message, "headers": headers.raw}
        elif self.replaced_start:
            start, self.replaced_start = self.replaced_start, None
            text = message.get("body", b"").decode("utf-8", "replace") or HTTPStatus(self.status).phrase
            kept = MutableHeaders(raw=list(start["headers"]))
            del kept["content-type"], kept["content-length"]
            error = JSONResponse({"error": text}, self.status, kept)
            await self({**start, "headers": error.raw_headers})
            message = {"type": "http.response.body", "body": error.body}
        if message["type"] == "http.response.body" and not self.has_body:
            message = {**message, "body": b""}
        await self.send(message)

    async def refuse(self, error: HTTPError, scope: Scope, receive: Receive) -> None:
        """Answer with an error, unless another response has begun."""
        if not self.status:
            await JSONResponse({"error": error.message}, error.status, error.headers)(scope, receive, self)


def _remove_host(location: str) -> str:
    """Return the path and query of a URL: the host that a client states is not repeated unchecked."""
    parts = urlsplit(location)
    return urlunsplit(("", "", f"/{parts.path.lstrip('/')}", parts.query, ""))
