"""What settings must be, whatever the model."""

from __future__ import annotations


def at_least_one(settings: object, *names: str) -> None:
    """Refuses a width or a number below 1; None stands for a default."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def not_negative(settings: object, *names: str) -> None:
    """Refuses a weight below 0."""
    for name in names:
        if getattr(settings, name) < 0:
            raise ValueError(f"{name} must be at least 0, not {getattr(settings, name)}")
