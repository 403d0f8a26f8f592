"""Range checks for model settings."""

from __future__ import annotations

_MAX_VALUES = {"layers": 1000}
_DEFAULT_MAX_VALUE = 1_000_000  # catches typing mistakes and damaged configs before they exhaust the memory


def check_positive(settings: object, *names: str) -> None:
    """Raise ValueError unless each setting is at least 1 and below a sanity limit; None stands for a default."""
    for name in names:
        value, maximum = getattr(settings, name), _MAX_VALUES.get(name, _DEFAULT_MAX_VALUE)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
        if value is not None and value > maximum:
            raise ValueError(f"{name} must be at most {maximum:,}, not {value}")


def check_nonnegative(settings: object, *names: str) -> None:
    """Raise ValueError if a setting is below 0."""
    for name in names:
        if getattr(settings, name) < 0:
            raise ValueError(f"{name} must be at least 0, not {getattr(settings, name)}")


def check_fraction(settings: object, *names: str) -> None:
    """Raise ValueError unless each setting is at least 0 and below 1."""
    for name in names:
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(settings, name)}")
