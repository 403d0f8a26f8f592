"""What settings must be, whatever the model."""

from __future__ import annotations

MOST = {"layers": 1000}
USUAL = 1_000_000  # wider than any model; a slip of the keyboard, or damage, asks for more than any machine has


def at_least_one(settings: object, *names: str) -> None:
    """Refuses a width or a number below 1, or beyond all measure; None stands for a default."""
    for name in names:
        value, most = getattr(settings, name), MOST.get(name, USUAL)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
        if value is not None and value > most:
            raise ValueError(f"{name} must be at most {most:,}, not {value}")


def not_negative(settings: object, *names: str) -> None:
    """Refuses a weight below 0."""
    for name in names:
        if getattr(settings, name) < 0:
            raise ValueError(f"{name} must be at least 0, not {getattr(settings, name)}")


def share(settings: object, *names: str) -> None:
    """Refuses what is no share of a whole: all of it, or less than nothing."""
    for name in names:
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(settings, name)}")
