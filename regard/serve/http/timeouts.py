"""HTTP connections: timeouts, limits, and the cancellation of requests, which uvicorn does not have."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from typing import NoReturn

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.http.middleware import BEYOND_LIMIT, DISCONNECTED

CROWDED_HEADER_TIMEOUT = 2.0  # seconds that a connection has for its headers if there are too many connections
HALF_CLOSE_GRACE = 5.0  # seconds for the response to a client that has closed its side of the connection
MIN_RATE = 1000  # bytes in a second that a client must accept of a response
DISCARD_LIMIT = 256 << 20  # bytes that are read after an early response, for clients that read it only when all is sent
HEAD_SIZE = 65_536  # bytes of an incomplete line, or of headers, that are kept
HEADER_LINES = 1_000  # of one request: each costs about three microseconds in which no other request is served
CHUNKS = 1_000  # of a body, however small: each costs about ten microseconds …
CHUNK_SIZE = 1_024  # … bytes for each further chunk
BLANK_LINE = re.compile(rb"\n\r?\n")
LINGER_ZERO = struct.pack("ii", 1, 0)  # closing the connection discards unsent data


class LimitedParser(h11.Connection):
    """HTTP parser that refuses requests that take long to parse for their size: they would stall the service."""

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

    def _refuse(self, reason: str) -> NoReturn:
        self.refusal = f"Invalid request: {reason}"
        raise h11.RemoteProtocolError(self.refusal)


class TimeoutProtocol(H11Protocol):
    """Connection of uvicorn with timeouts; a request whose client disconnects is cancelled."""

    timeout = 30.0  # seconds from the first byte of a request to the last of its headers, and for a response to move
    header_timer: asyncio.TimerHandle | None = None
    write_timer: asyncio.TimerHandle | None = None
    half_close_timer: asyncio.TimerHandle | None = None
    request: tuple[asyncio.Task[None], Scope] | None = None  # the latest one
    is_beyond_limit = False  # its requests are refused
    discarded = 0  # bytes since the last response that belong to no further request
    unsent = 0  # bytes of a response when its progress was last checked

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header timer; make room for the connection, or mark it as refused, if there are too many."""
        super().connection_made(transport)
        self.app = self._run_request
        self.conn = self.parser = LimitedParser(h11.SERVER, HEAD_SIZE)
        limit, self.limit_concurrency = self.limit_concurrency, None  # uvicorn's own response is not JSON
        if limit is not None and len(self.connections) > limit:
            self._close_idlest()
        if limit is not None and len(self.connections) > limit:
            self.is_beyond_limit = True
            self.timeout = min(self.timeout, CROWDED_HEADER_TIMEOUT)
            if len(self.connections) > 2 * limit:
                transport.abort()
        transport.set_write_buffer_limits(high=0)  # pause_writing is called for the smallest delay
        self._start_header_timer()

    def _close_idlest(self) -> None:
        """Close the connection that has waited longest for a further request, if one waits and has read its answer."""
        idle = [
            (connection.timeout_keep_alive_task.when(), id(connection), connection)
            for connection in self.connections
            if isinstance(connection, TimeoutProtocol)
            and connection.timeout_keep_alive_task is not None
            and not connection.transport.is_closing()
            and not connection.transport.get_write_buffer_size()
        ]
        if idle:
            idlest = min(idle)[-1]
            idlest.transport.close()
            self.connections.discard(idlest)  # uvicorn does so later, when it hears of the end

    def data_received(self, data: bytes) -> None:
        """Time the headers, and discard the rest of a refused body; the time of a body is limited by the middleware."""
        if not self.is_busy:
            self._start_header_timer()
            self.discarded += len(data)
            if self.discarded > DISCARD_LIMIT:
                self.transport.close()
                return
        super().data_received(data)
        if self.is_busy:
            _cancel(self.header_timer)
            self.header_timer, self.discarded = None, 0

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that has closed its side, if that is soon, and then close the connection.

        A client that has left looks no different until something is sent to it.
        """
        if self.is_busy:
            self.cycle.keep_alive = False
            delay = min(HALF_CLOSE_GRACE, self.timeout)
            self.half_close_timer = self.loop.call_later(delay, self.transport.abort)
        return self.is_busy

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, and cancel a request that is not answered yet."""
        for timer in (self.header_timer, self.write_timer, self.half_close_timer):
            _cancel(timer)
        if self.is_busy and self.request is not None:
            task, scope = self.request
            scope[DISCONNECTED] = True
            task.cancel()
        super().connection_lost(exc)

    async def _run_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.cycle.disconnected:  # before this task began
            return
        if task := asyncio.current_task():
            self.request = task, scope
        if self.is_beyond_limit:
            scope[BEYOND_LIMIT] = True
        await self.config.loaded_app(scope, receive, send)

    @property
    def is_busy(self) -> bool:
        """True if a request is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_header_timer(self) -> None:
        if self.header_timer is None:
            self.header_timer = self.loop.call_later(self.timeout, self._end_silent_connection)

    def _end_silent_connection(self) -> None:
        self.header_timer = None
        if not self.is_busy and not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        """Start to check that the client accepts the response."""
        super().pause_writing()
        _cancel(self.write_timer)
        self.unsent = self.transport.get_write_buffer_size()
        self.write_timer = self.loop.call_later(self.timeout, self._check_write_progress)

    def resume_writing(self) -> None:
        """Stop the check: all is sent."""
        _cancel(self.write_timer)
        super().resume_writing()

    def _check_write_progress(self) -> None:
        """Close a connection whose client accepts next to nothing of its response, which frees the memory for it."""
        unsent = self.transport.get_write_buffer_size()
        if self.unsent - unsent >= MIN_RATE * self.timeout:
            self.unsent = unsent
            self.write_timer = self.loop.call_later(self.timeout, self._check_write_progress)
            return
        self.write_timer = None
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a JSON error, unless another response has begun."""
        body = json.dumps({"error": self.parser.refusal or msg}).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def make_protocol(timeout: float) -> type[TimeoutProtocol]:
    """Return the protocol with a timeout in seconds."""
    return type("Protocol", (TimeoutProtocol,), {"timeout": timeout})
