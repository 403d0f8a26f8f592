"""A worker process for tests of the pool: upper-cases texts, and accepts new ones while it works."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from regard.serve.engine.workers import work


def find(texts: Sequence[str], kind: int, tell: Callable[[int, str], None], more: Callable[[], Sequence[str]]) -> None:
    """Answer each text, the last first; "bad" raises an error, "die" ends the process."""
    going, count = dict(enumerate(texts)), len(texts)
    while going:
        number = max(going)
        if going[number] == "bad":
            raise ArithmeticError("no")
        if going[number] == "die":
            os._exit(7)
        tell(number, f"{going.pop(number).upper()}{kind}")
        new = more()
        going.update(enumerate(new, count))
        count += len(new)


def start(line: Connection) -> None:
    """Serve requests from the pool."""
    work(line, find)


def exit_at_once(line: Connection) -> None:
    """End before the first request."""
    os._exit(3)
