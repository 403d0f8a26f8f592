"""What is not done, and what the answer says then."""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):  # noqa: N818 - an answer, not a mistake
    """An answer that says no: `{"error": text}` with a status of its own."""

    def __init__(self, text: str, status: int = 400, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        self.headers = dict(headers or {})


def missing(name: str) -> Refusal:
    """A parameter that must be there is not."""
    return Refusal(f"Invalid request: missing {name} parameter")


class OverloadedError(Refusal):
    """The service cannot take the request now; `why` is for those who run it, `text` for the client."""

    def __init__(self, why: str, text: str = "Too much is waiting; try again in a moment") -> None:
        super().__init__(text, 503, {"Retry-After": "2"})
        self.why = why

    def __str__(self) -> str:
        return self.why
