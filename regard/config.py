"""Configuration parsing: convert mappings, as YAML gives them, to dataclasses with checked keys and types."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.errors import UserError, format_suggestion, short_repr, to_single_line

T = TypeVar("T")


class Range(NamedTuple):
    """Allowed values of a setting: from `minimum` to `maximum`, and less than `below`."""

    minimum: int = 0
    maximum: float = math.inf
    below: float = math.inf

    def check(self, value: float, key: str) -> None:
        """Raise a ValueError that names the key if the value is out of range."""
        if self.below < math.inf and not self.minimum <= value < self.below:
            raise ValueError(f"{key} must be at least {self.minimum} and below {self.below}, not {value}")
        if value < self.minimum:
            raise ValueError(f"{key} must be at least {self.minimum}, not {value}")
        if value > self.maximum:
            raise ValueError(f"{key} must be at most {self.maximum:,}, not {value}")


# Types of settings that `parse_settings` checks. The maxima catch typing mistakes and damaged configs before they
# exhaust the memory.
PositiveInt = Annotated[int, Range(1, 1_000_000)]
Count = Annotated[int, Range(1)]  # without a maximum
NumLayers = Annotated[int, Range(1, 1000)]
NonNegativeInt = Annotated[int, Range(0)]
NonNegativeFloat = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, below=1)]
Probability = Annotated[float, Range(0, 1)]


def parse_settings(cls: type[T], values: Mapping[str, Any], section: str) -> T:
    """Build the dataclass `cls` from `values`; errors about a key's name or type name it as `section.key`.

    Keys that are missing take the dataclass's defaults. Values of annotated types such as `PositiveInt` must be in
    their range. Errors about a range, and a ValueError of `__post_init__`, begin with `section: `.
    """
    hints = get_type_hints(cls)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(typing.cast(Any, cls))}
    for key in values:
        if key not in fields:
            key_text = to_single_line(key)  # a YAML key may span lines, the message must not
            raise UserError(f"unknown key {section}.{key_text}{format_suggestion(str(key), fields)}")
    for field in dataclasses.fields(typing.cast(Any, cls)):
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_required and field.name not in values:
            raise UserError(f"{section} has no {field.name}")
    arguments = {key: convert_value(value, fields[key], f"{section}.{key}") for key, value in values.items()}
    try:
        _check_ranges(cls, arguments)
        return cls(**arguments)
    except ValueError as error:
        raise UserError(f"{section}: {error}") from error


def _check_ranges(cls: type, values: Mapping[str, Any]) -> None:
    """Raise ValueError if a number is not in the range of its field's annotated type."""
    hints = get_type_hints(cls, include_extras=True)
    for key, value in values.items():
        for part in (hints[key], *get_args(hints[key])):  # of `PositiveInt | None`, too
            for limits in getattr(part, "__metadata__", ()):
                if isinstance(limits, Range) and isinstance(value, int | float):
                    limits.check(value, key)


def convert_value(value: Any, hint: Any, key: str) -> Any:
    """Return the value converted to the type `hint`; raise a UserError that names the key, the type and the value."""
    if get_origin(hint) in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), key)
    if get_origin(hint) is Literal:
        if value in get_args(hint) and type(value) in {type(choice) for choice in get_args(hint)}:
            return value
        choices = ", ".join(map(str, get_args(hint)))
        raise UserError(f"{key} is one of {choices}, not {short_repr(value)}")
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(convert_value(item, get_args(hint)[0], key) for item in value)
        raise UserError(f"{key} is a list, not {short_repr(value)}")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            return parse_settings(hint, value, key)
        raise UserError(f"{key} is a mapping, not {short_repr(value)}")
    if hint is type(None) and value is None:
        return None
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        return _parse_float(value, key)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    raise UserError(f"{key} is {names.get(hint, hint)}, not {short_repr(value)}")


def _convert_union(value: Any, hints: tuple[Any, ...], key: str) -> Any:
    """Return the value as the first of several types that accepts it; the error lists why each type refused it."""
    if value is None and type(None) in hints:
        return None
    reasons = []
    for hint in hints:
        try:
            return convert_value(value, hint, key)
        except UserError as error:
            reasons.append(str(error).removeprefix(f"{key} is ").removesuffix(f", not {short_repr(value)}"))
    raise UserError(f"{key} is {' or '.join(reasons)}, not {short_repr(value)}")


def _parse_float(value: int | float | str, key: str) -> float:
    """Return a float; text is accepted because YAML reads `1e-6`, without a decimal point, as text."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{key} is a number, not {short_repr(value)}")
    return number
