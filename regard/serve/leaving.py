"""Who goes away is no longer worked for."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
