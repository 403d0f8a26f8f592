"""When a line is due for those who wait, and how long they will have to."""

from __future__ import annotations

import time
from collections.abc import Callable

SILENCE = 30.0  # seconds, after which somebody wants to know whether it still works


class Pace:
    """Updates and the time that they take, validations and all; what is trained does not depend on it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.begin(0)

    def begin(self, step: int) -> None:
        """From this step on."""
        self.first, self.began = step, self.clock()
        self.said = self.began

    def due(self) -> bool:
        """Whether nothing was said for too long."""
        return self.clock() - self.said >= SILENCE

    def left(self, step: int, last: int | None) -> str:
        """How long the rest will take at most, as it is said now; nothing where nobody knows the end."""
        self.said = self.clock()
        if last is None or step <= self.first:
            return ""
        seconds = (self.said - self.began) / (step - self.first) * max(0, last - step)
        return f"  {spoken(seconds)} left"


def spoken(seconds: float) -> str:
    """A time in words, no more exact than an estimate is."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 100:
        return f"about {minutes} min"
    return f"about {round(minutes / 60)} h"
