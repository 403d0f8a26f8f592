"""HTTP connections: timeouts, a limit, and the cancellation of requests, which uvicorn does not have."""

from __future__ import annotations

import asyncio

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.http.middleware import DISCONNECTED

MIN_RATE = 1000  # bytes in a second that a client must accept of a response
HEAD_SIZE = 65_536  # bytes of an incomplete line, or of headers, that are kept
CHUNKS = 1_000  # of a body, however small: each costs about ten microseconds in which no other request is served …
CHUNK_SIZE = 1_024  # … bytes for each further chunk


class LimitedParser(h11.Connection):
    """HTTP parser that refuses bodies in many tiny chunks, with which one client could stall the service."""

    chunks = received = 0  # chunks and bytes of the body

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse the next part of a request; RemoteProtocolError if its chunks are too small."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.received = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            self.received += len(event.data)
            if self.chunks > CHUNKS + self.received // CHUNK_SIZE:
                raise h11.RemoteProtocolError("the body has too many small chunks")
        return event


class TimeoutProtocol(H11Protocol):
    """Connection of uvicorn with timeouts; a request whose client disconnects is cancelled."""

    timeout = 30.0  # seconds from the first byte of a request to the last of its headers, and for a response to move
    header_timer: asyncio.TimerHandle | None = None
    write_timer: asyncio.TimerHandle | None = None
    request: tuple[asyncio.Task[None], Scope] | None = None  # the latest one
    unsent = 0  # bytes of a response when its progress was last checked

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header timer; beyond the limit, close the connection that has been idle longest.

        If none is idle, uvicorn answers the requests of this one with a 503.
        """
        super().connection_made(transport)
        self.app = self._run_request
        self.conn = LimitedParser(h11.SERVER, HEAD_SIZE)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._close_idlest()
            if len(self.connections) >= 2 * self.limit_concurrency:
                transport.abort()
        transport.set_write_buffer_limits(high=0)  # pause_writing is called for the smallest delay
        self._start_header_timer()

    def _close_idlest(self) -> None:
        """Close the connection that has waited longest for a further request, if there is one."""
        idle = [
            (connection.timeout_keep_alive_task.when(), id(connection), connection)
            for connection in self.connections
            if isinstance(connection, TimeoutProtocol) and connection.timeout_keep_alive_task is not None
        ]
        if idle:
            idlest = min(idle)[-1]
            idlest.transport.close()
            self.connections.discard(idlest)  # uvicorn does so later, when it hears of the end

    def data_received(self, data: bytes) -> None:
        """Time the headers, and the rest of a refused body; the time of other bodies is limited by the middleware."""
        if not self.is_busy:
            self._start_header_timer()
        super().data_received(data)
        if self.is_busy:
            _cancel(self.header_timer)
            self.header_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, and cancel a request that is not answered yet."""
        for timer in (self.header_timer, self.write_timer):
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
        self.transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def make_protocol(timeout: float) -> type[TimeoutProtocol]:
    """Return the protocol with a timeout in seconds."""
    return type("Protocol", (TimeoutProtocol,), {"timeout": timeout})
