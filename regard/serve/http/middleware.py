"""What stands before every request: how large and how slow it may be, what each answer carries, what is noted of it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit, urlunsplit

from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.errors import UserError
from regard.serve.access.rate_limit import client_address
from regard.serve.http.errors import Refusal
from regard.serve.http.request import FORM
from regard.serve.metrics import Figures, note
from regard.serve.settings import Settings

CORS = {
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Expose-Headers": "Authorization",
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Max-Age": "1728000",
}
SAFE = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
GONE = 499  # what is written down of a request whose client left before it was answered
ENDING = Refusal("The service is ending; try again in a moment", 503, {"Retry-After": "10", "Connection": "close"})
CROWDED = Refusal("Too many connections; try again in a moment", 503, {"Retry-After": "2", "Connection": "close"})
BEYOND_LIMIT = "regard.beyond_connection_limit"  # key of the scope of a request to refuse
LONGEST = 200  # letters of a path in the log
ORIGIN = re.compile(r"https?://[^/\s]+|\*")


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, settings: Settings, figures: Figures) -> None:
        self.app = app
        self.settings = settings
        self.figures = figures
        self.origins = allowed_origins(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; whatever happens, there is an answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = Answer(send, self.headers(scope), bodiless=scope["method"] == "HEAD")
        started = time.perf_counter()
        method = scope["method"]
        if method == "HEAD":  # answered wherever GET is, without a body
            scope = {**scope, "method": "GET"}
        try:
            if BEYOND_LIMIT in scope:
                await answer.refuse(CROWDED, scope, receive)
            elif scope["method"] == "OPTIONS":
                await JSONResponse({})(scope, receive, answer)
            else:
                await self.app(scope, self.bounded(scope, receive), answer)
        except Refusal as refusal:
            await answer.refuse(refusal, scope, receive)
        except asyncio.CancelledError:  # the service ends before it could be answered
            await answer.refuse(ENDING, scope, receive)
        except Exception as error:
            note("failed", logging.ERROR, error, path=scope["path"])
            await answer.refuse(Refusal("Internal server error", 500), scope, receive)
        finally:
            if form := scope.get(FORM):
                await form.close()
            self.log_request(scope, method, answer.status or GONE, time.perf_counter() - started)

    def headers(self, scope: Scope) -> dict[bytes, bytes]:
        """Return the headers of every answer; those of CORS if the page that asks may use the service."""
        found = dict(SAFE)
        origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), "")
        if "*" in self.origins:
            found |= CORS | {"Access-Control-Allow-Origin": "*"}
        elif self.origins:
            found["Vary"] = "Origin"
            if origin in self.origins:
                found |= CORS | {"Access-Control-Allow-Origin": origin}
        return {name.lower().encode(): value.encode("latin-1") for name, value in found.items()}

    def bounded(self, scope: Scope, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """A body that ends with a refusal where it is too large, or too long in coming."""
        is_file = scope["path"].endswith("/translate_file")
        limit = self.settings.file_limit if is_file else self.settings.body_limit
        text = f"Invalid request: the {'file' if is_file else 'body'} exceeds {limit} bytes"
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > limit:
            raise Refusal(text, 413)
        size, whole = 0, False
        deadline = time.monotonic() + self.settings.patience

        async def bounded() -> Message:
            nonlocal size, whole
            if whole:  # what comes now is that the client has gone, whenever it goes
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise Refusal("The request took too long to arrive", 408, {"Connection": "close"}) from error
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > limit:
                raise Refusal(text, 413)
            return message

        return bounded

    def log_request(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """Counts a request and writes it down: its route, or the path that leads nowhere; never its words."""
        route = getattr(scope.get("route"), "path", None)
        counted = route or "other"  # whatever strangers think of, there are as many figures as routes
        self.figures.requests.labels(counted, str(status)).inc()
        self.figures.seconds.labels(counted).observe(seconds)
        client, path = client_address(scope, self.settings.trust_proxy), route or scope["path"][:LONGEST]
        note("request", method=method, path=path, status=status, ms=round(1000 * seconds, 1), client=client)


def allowed_origins(settings: Settings) -> frozenset[str]:
    """Return the origins of web pages that may use the service: those of --cors, or all if there are no keys."""
    for origin in settings.cors:
        if not ORIGIN.fullmatch(origin):
            raise UserError(f"--cors is an origin like https://example.org, without a path, or *; not {origin!r}")
    return frozenset(settings.cors or (() if settings.keys else ("*",)))


def remove_host(location: bytes) -> bytes:
    """Return the path and query of a URL: the host that a client states is not repeated unchecked."""
    parts = urlsplit(location.decode("latin-1"))
    return urlunsplit(("", "", f"/{parts.path.lstrip('/')}", parts.query, "")).encode("latin-1")


class Answer:
    """What is sent, with the headers that each answer has. An error that is not JSON becomes JSON."""

    def __init__(self, send: Send, headers: Mapping[bytes, bytes], bodiless: bool = False) -> None:
        self.sender = send
        self.headers = headers
        self.bodiless = bodiless
        self.status = 0  # until it has begun
        self.held: Message | None = None  # the beginning of an error that is not JSON, as of a file's range
        self.over = False  # whether such an error has been answered

    async def __call__(self, message: Message) -> None:
        """One message of it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name.lower(): value for name, value in message.get("headers", [])}
            if self.status >= 400 and not own.get(b"content-type", b"").startswith(b"application/json"):
                self.held = message
                return
            had = [(name, value) for name, value in message.get("headers", []) if name.lower() != b"location"]
            if location := own.get(b"location"):
                had.append((b"location", remove_host(location)))
            more = [(name, value) for name, value in self.headers.items() if name not in own]
            message = {**message, "headers": [*had, *more]}
        elif self.held:
            start, self.held = self.held, None
            text = message.get("body", b"").decode("utf-8", "replace") or HTTPStatus(self.status).phrase
            lost = (b"content-type", b"content-length")
            kept = {name.decode(): value.decode() for name, value in start["headers"] if name.lower() not in lost}
            body = JSONResponse({"error": text}, self.status, kept)
            await self({**start, "headers": body.raw_headers})
            message, self.over = {"type": "http.response.body", "body": body.body}, True
        elif self.over:
            return
        if self.bodiless and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self.sender(message)

    async def refuse(self, refusal: Refusal, scope: Scope, receive: Receive) -> None:
        """An answer that says no, unless another has begun."""
        if not self.status:
            answer = JSONResponse({"error": refusal.text}, refusal.status, refusal.headers)
            await answer(scope, receive, self)


class Leaving:
    """An ASGI application around another, which is called off when its client goes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client = Client(receive)
        work = asyncio.ensure_future(self.app(scope, client, send))
        gone = asyncio.ensure_future(client.gone.wait())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
            else:
                work.result()
        finally:
            work.cancel()
            gone.cancel()
            client.close()


class Client:
    """What comes from a client; when all of its request has come, its going is waited for."""

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.gone = asyncio.Event()
        self.watch: asyncio.Task[None] | None = None

    async def __call__(self) -> Message:
        """The next message; behind the last of a request there is only that the client has gone."""
        if self.watch is None:
            message = await self.receive()
            if message["type"] == "http.request":
                if not message.get("more_body", False):
                    self.watch = asyncio.create_task(self.until_gone())
                return message
            self.gone.set()
            await asyncio.Event().wait()  # until the request is cancelled: an incomplete body is no error to report
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def until_gone(self) -> None:
        """Waits for the end of the connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.gone.set()

    def close(self) -> None:
        """Waits no longer."""
        if self.watch is not None:
            self.watch.cancel()


SOUND = re.compile(r"(?:/[\w.~-]+)+")


class Prefixed:
    """An ASGI application under a prefix, and nothing beside it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.app = app
        self.prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; the application is told the prefix, and does not take it for a part of its own paths."""
        if scope["type"] != "http" or scope["path"].startswith(f"{self.prefix}/"):
            scope["root_path"] = self.prefix  # in place: whoever notes the request later wants to know its route
            await self.app(scope, receive, send)
            return
        elsewhere: Response = JSONResponse({"error": "Not Found"}, 404)
        if scope["path"] == self.prefix:  # links on the page begin behind the last slash
            elsewhere = RedirectResponse(f"{self.prefix}/")
        await elsewhere(scope, receive, send)


def prefix(given: str) -> str:
    """A prefix as it stands before paths: a slash at its beginning and none at its end; empty: there is none."""
    found = f"/{given.strip('/')}" if given.strip("/") else ""
    if found and not SOUND.fullmatch(found):
        raise UserError(f"--url-prefix is a path like /translate, not {given!r}")
    return found
