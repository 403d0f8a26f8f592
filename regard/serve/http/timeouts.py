"""One client's connection: how long it may take to say what it wants and to listen, and what comes of its silence."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from typing import NoReturn

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.http.middleware import BEYOND_LIMIT

CROWDED_HEADER_TIMEOUT = 2.0  # seconds that a connection has for its headers where there are too many
SOON = 5.0  # seconds that whoever says no more is still worked for
PACE = 1000  # bytes in a second that whoever listens must take
DISCARD_LIMIT = 256 << 20  # bytes that are read after an early answer, for clients that read it only when all is sent
HEAD_SIZE = 65_536  # bytes of an incomplete line, or of headers, that are kept
HEADER_LINES = 1_000  # of one request: each costs about three microseconds in which nobody else is served
CHUNKS = 1_000  # of a body, however small: each costs about ten microseconds …
CHUNK_SIZE = 1_024  # … bytes for each further chunk
BLANK_LINE = re.compile(rb"\n\r?\n")
AT_ONCE = struct.pack("ii", 1, 0)  # a connection that ends so is forgotten, and what was not sent with it


class Parser(h11.Connection):
    """As h11 has it, but requests that take long to parse for their size are refused: they would stall the service."""

    refusal = ""  # why a request was refused, for the client
    chunks = received = 0  # chunks and bytes of the body

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse the next part of a request; RemoteProtocolError if it has too many headers or too small chunks."""
        if self.their_state is h11.IDLE:
            head = self.trailing_data[0]
            end = BLANK_LINE.search(head)
            if head.count(b"\n", 0, end.start() if end else len(head)) > HEADER_LINES:
                self._refuse(f"the request has more than {HEADER_LINES} headers")
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.received = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            self.received += len(event.data)
            if self.chunks > CHUNKS + self.received // CHUNK_SIZE:
                self._refuse(f"the body has too many small chunks; send it whole, or in chunks of {CHUNK_SIZE} bytes")
        return event

    def _refuse(self, why: str) -> NoReturn:
        self.refusal = f"Invalid request: {why}"
        raise h11.RemoteProtocolError(self.refusal)


class Connection(H11Protocol):
    """As uvicorn has it; besides, headers must come and answers be taken in time, and who has said all may listen."""

    patience = 30.0  # seconds from the first byte of a request to the last of its headers, and for an answer to move
    timer: asyncio.TimerHandle | None = None
    listening: asyncio.TimerHandle | None = None
    silent: asyncio.TimerHandle | None = None
    discarded = 0  # bytes since the last answer that belong to no further request
    left = 0  # bytes of an answer that were not taken when they were last looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait; the least that cannot be sent at once is told."""
        super().connection_made(transport)
        self.conn = self.parser = Parser(h11.SERVER, HEAD_SIZE)
        most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn's own answer is not JSON
        if most is not None and len(self.connections) > most:
            self.close_idlest()
        if most is not None and len(self.connections) > most:
            self.app = mark_as_refused(self.app)
            self.patience = min(self.patience, CROWDED_HEADER_TIMEOUT)
            if len(self.connections) > 2 * most:
                transport.abort()
        transport.set_write_buffer_limits(high=0)
        self.wait()

    def close_idlest(self) -> None:
        """Close the connection that has waited longest for a further request, if one waits and has read its answer."""
        idle = [
            (one.timeout_keep_alive_task.when(), id(one), one)
            for one in self.connections
            if isinstance(one, Connection)
            and one.timeout_keep_alive_task is not None
            and not one.transport.is_closing()
            and not one.transport.get_write_buffer_size()
        ]
        if idle:
            idlest = min(idle)[-1]
            idlest.transport.close()
            self.connections.discard(idlest)  # uvicorn does so later, when it hears of the end

    def data_received(self, data: bytes) -> None:
        """Waits while headers come; a body is waited for elsewhere, but the rest of a refused one is discarded here."""
        if not self.busy:
            self.wait()
            self.discarded += len(data)
            if self.discarded > DISCARD_LIMIT:
                self.transport.close()
                return
        super().data_received(data)
        if self.busy:
            self.rest()
            self.discarded = 0

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that says no more is answered all the same, if it is soon, and then the connection ends.

        One that has gone for good looks no different until something is sent to it.
        """
        if self.busy:
            self.cycle.keep_alive = False
            self.silent = self.loop.call_later(min(SOON, self.patience), self.transport.abort)
        return self.busy

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        self.rest()
        self.heard()
        if self.silent is not None:
            self.silent.cancel()
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """Whether a request has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def wait(self) -> None:
        """Sets the timer, if it is not set."""
        if self.timer is None:
            self.timer = self.loop.call_later(self.patience, self.give_up)

    def rest(self) -> None:
        """Stops the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def pause_writing(self) -> None:
        """Something could not be sent: begins to wait for whoever listens."""
        super().pause_writing()
        self.heard()
        self.left = self.transport.get_write_buffer_size()
        self.listening = self.loop.call_later(self.patience, self.urge)

    def resume_writing(self) -> None:
        """All of it is sent."""
        self.heard()
        super().resume_writing()

    def heard(self) -> None:
        """Stops waiting for whoever listens."""
        if self.listening is not None:
            self.listening.cancel()
            self.listening = None

    def urge(self) -> None:
        """Ends a connection whose client takes next to nothing of its answer, and frees what was kept for it."""
        left = self.transport.get_write_buffer_size()
        if self.left - left >= PACE * self.patience:
            self.left = left
            self.listening = self.loop.call_later(self.patience, self.urge)
            return
        self.listening = None
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a JSON error, as every other mistake, unless another answer has begun."""
        body = json.dumps({"error": self.parser.refusal or msg}).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def give_up(self) -> None:
        """Ends a connection on which nothing sensible came."""
        self.timer = None
        if not self.busy and not self.transport.is_closing():
            self.transport.close()


def mark_as_refused(app: ASGIApp) -> ASGIApp:
    """Let an application know that a request came on a connection beyond the limit."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        scope[BEYOND_LIMIT] = True
        await app(scope, receive, send)

    return marked


def patient(seconds: float) -> type[Connection]:
    """A connection that waits for so long."""
    return type("Patient", (Connection,), {"patience": seconds})
