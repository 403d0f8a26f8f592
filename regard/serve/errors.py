"""Errors that the service answers with a status and `{"error": message}`."""

from __future__ import annotations

from collections.abc import Mapping


class HTTPError(Exception):
    """Error for the client, with its HTTP status."""

    def __init__(self, message: str, status: int = 400, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.headers = dict(headers or {})


class OverloadedError(HTTPError):
    """The service cannot take the request now; `reason` is for its operator, `message` for the client."""

    def __init__(self, reason: str, message: str = "Too much is waiting; try again in a moment") -> None:
        super().__init__(message, 503, {"Retry-After": "2"})
        self.reason = reason

    def __str__(self) -> str:
        return self.reason
