"""From mappings, as YAML gives them, to dataclasses: every key known, every value of the right type."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.errors import UserError, nearest, shown

T = TypeVar("T")


def parse(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """A `cls` (a dataclass) of `values`; `where` is the section's name, for the error.

    Keys that are missing take the dataclass's defaults. What a section checks itself, in `__post_init__`, is reported
    with the section's name before it.
    """
    hints = get_type_hints(cls)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(typing.cast(Any, cls))}
    for key in values:
        if key not in fields:
            named = " ".join(str(key).split())  # a key of YAML may have lines, a sentence has one
            raise UserError(f"unknown key {where}.{named}{nearest(str(key), fields)}")
    for field in dataclasses.fields(typing.cast(Any, cls)):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in values:
            raise UserError(f"{where} has no {field.name}")
    given = {key: convert(value, fields[key], f"{where}.{key}") for key, value in values.items()}
    try:
        return cls(**given)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def convert(value: Any, hint: Any, where: str) -> Any:
    """The value as `hint` wants it, or an error that names both."""
    if get_origin(hint) in (Union, types.UnionType):
        return convert_any(value, get_args(hint), where)
    if get_origin(hint) is Literal:
        if value in get_args(hint) and type(value) in {type(choice) for choice in get_args(hint)}:
            return value
        choices = ", ".join(map(str, get_args(hint)))
        raise UserError(f"{where} is one of {choices}, not {shown(value)}")
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(convert(item, get_args(hint)[0], where) for item in value)
        raise UserError(f"{where} is a list, not {shown(value)}")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            return parse(hint, value, where)
        raise UserError(f"{where} is a mapping, not {shown(value)}")
    if hint is type(None) and value is None:
        return None
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        return as_float(value, where)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    raise UserError(f"{where} is {names.get(hint, hint)}, not {shown(value)}")


def convert_any(value: Any, hints: tuple[Any, ...], where: str) -> Any:
    """The value as the first of several types that takes it, or the reasons of all that refused it."""
    reasons = []
    for hint in hints:
        try:
            return convert(value, hint, where)
        except UserError as error:
            reasons.append(str(error).removeprefix(f"{where} is ").removesuffix(f", not {shown(value)}"))
    raise UserError(f"{where} is {' or '.join(reasons)}, not {shown(value)}")


def as_float(value: int | float | str, where: str) -> float:
    """A number; YAML reads `1e-6` as text, which is a number to everybody else."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{where} is a number, not {shown(value)}")
    return number
