"""One client's connection: how long it may take to say what it wants, and what happens when it falls silent."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """As uvicorn has it; besides, headers must come in time, and who has said all may still listen."""

    patience = 30.0  # seconds from the first byte of a request to the last of its headers
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait."""
        super().connection_made(transport)
        self.wait()

    def data_received(self, data: bytes) -> None:
        """Waits while headers come; a body is waited for elsewhere."""
        if not self.busy:
            self.wait()
        super().data_received(data)
        if self.busy:
            self.rest()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that says no more is answered all the same, and then the connection ends."""
        if self.busy:
            self.cycle.keep_alive = False
        return self.busy

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        self.rest()
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

    def give_up(self) -> None:
        """Ends a connection on which nothing sensible came."""
        self.timer = None
        if not self.busy and not self.transport.is_closing():
            self.transport.close()


def patient(seconds: float) -> type[Connection]:
    """A connection that waits for so long."""
    return type("Patient", (Connection,), {"patience": seconds})
