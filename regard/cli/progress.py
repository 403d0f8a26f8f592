"""A bar for what goes through a command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
EVERY = 1000


def counted(items: Iterable[Item], doing: str) -> Iterator[Item]:
    """The same items, with a bar that counts them; for streams whose end nobody knows."""
    from regard.console import bar

    with bar() as progress:
        task = progress.add_task(doing, total=None, note="")
        for number, item in enumerate(items):
            if number % EVERY == 0:
                progress.update(task, completed=number)
            yield item
