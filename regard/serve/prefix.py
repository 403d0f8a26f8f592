"""Everything under a prefix, where a proxy hands on no more than a part of its addresses."""

from __future__ import annotations

import re

from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from regard.errors import UserError

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
