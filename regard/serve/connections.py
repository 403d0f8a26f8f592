"""HTTP connections: timeouts, limits, and the cancellation of requests, which uvicorn does not have."""

from __future__ import annotations

import asyncio
import re

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

DISCONNECTED = "regard.disconnected"  # key of the scope: the request was cancelled because its client has left
MIN_RATE = 1000  # bytes in a second that a client must accept of a response
HEAD_SIZE = 65_536  # bytes of a request line and its headers, or of an incomplete line of a body
MAX_FIELDS = 100  # headers of a request: each takes ten microseconds in which no other request is served …
BLANK_LINE = re.compile(rb"\n\r?\n")
LAST_CHUNK = re.compile(rb"(\r?\n)?0+[ \t]*(;[^\n]*)?\r\n")  # of a body, after which further headers may follow
CHUNKS = 1_000  # … of a body, however small: each takes as long …
CHUNK_SIZE = 1_024  # … bytes for each further chunk


class LimitedParser(h11.Connection):
    """HTTP parser that refuses many headers or tiny chunks, with which one client could stall the service."""

    chunks = received = 0  # chunks and bytes of the body
    is_before_chunk = False  # of a body, which may be the last one
    is_in_trailers = False  # behind the last chunk
    status = 400  # of the refusal of a request that cannot be parsed

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse the next part of a request; RemoteProtocolError if it has too many headers or too small chunks."""
        try:
            self._limit_fields()
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint
            raise
        if isinstance(event, h11.Request):
            self.chunks = self.received = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            self.received += len(event.data)
            if self.chunks > CHUNKS + self.received // CHUNK_SIZE:
                raise h11.RemoteProtocolError("the body has too many small chunks")
        if event is not h11.NEED_DATA:
            self.is_before_chunk, self.is_in_trailers = _precedes_chunk(event), False
        return event

    def _limit_fields(self) -> None:
        """Refuse the head of a request, or what follows the last chunk of its body, before too much is parsed."""
        if not (self.is_before_chunk or self.their_state is h11.IDLE):
            return
        data, start, num_fields = self.trailing_data[0], 0, 0
        if self.is_in_trailers:
            num_fields = 1  # the others follow a line, the first of these has been read
        elif self.is_before_chunk:
            if not (last := LAST_CHUNK.match(data)):
                return
            self.is_in_trailers, start = True, last.end() - 1
        blank_line = BLANK_LINE.search(data, start, start + HEAD_SIZE)
        end = blank_line.start() if blank_line else len(data)
        num_fields += data.count(b"\n", start, end)
        if num_fields > MAX_FIELDS or end - start > HEAD_SIZE:
            raise h11.RemoteProtocolError("the request has too many headers", error_status_hint=431)


def _precedes_chunk(event: object) -> bool:
    if isinstance(event, h11.Request):
        return any(name == b"transfer-encoding" for name, _ in event.headers)
    return isinstance(event, h11.Data) and event.chunk_end


class TimeoutProtocol(H11Protocol):
    """Connection of uvicorn with timeouts; a request whose client disconnects is cancelled."""

    conn: LimitedParser
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
        idle = {
            timer.when(): connection
            for connection in self.connections
            if isinstance(connection, TimeoutProtocol) and (timer := connection.timeout_keep_alive_task)
        }
        if idle:
            idlest = idle[min(idle)]
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
        _cancel(self.header_timer, self.write_timer)
        if self.is_busy and self.request is not None:
            task, scope = self.request
            scope[DISCONNECTED] = True
            task.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed; too large headers by their own status, which uvicorn does not know."""
        if self.conn.status != 431 or self.is_busy:
            super().send_400_response(msg)
            return
        head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
        self.transport.write(head + b"The headers of the request are too many or too long.")
        self.transport.close()

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


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in filter(None, timers):
        timer.cancel()


def make_protocol(timeout: float) -> type[TimeoutProtocol]:
    """Return the protocol with a timeout in seconds."""
    return type("Protocol", (TimeoutProtocol,), {"timeout": timeout})
