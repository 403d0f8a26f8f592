"""What a process can do in a test: texts in upper case, by a model that takes in what comes while it works."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from regard.serve.processes import work


def find(texts: Sequence[str], kind: int, tell: Callable[[int, str], None], more: Callable[[], Sequence[str]]) -> None:
    """Each text with its kind, the last first; "bad" is an error, "die" the end of the process."""
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
    """The process."""
    work(line, find)


def stillborn(line: Connection) -> None:
    """One that ends before it can work."""
    os._exit(3)
