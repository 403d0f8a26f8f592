"""Parsing of configuration mappings into dataclasses, and its error messages."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import Fraction, PositiveInt, convert_value, parse_settings
from regard.errors import UserError, format_suggestion


@dataclass(frozen=True, kw_only=True)
class Oven:
    heat: int = 180
    share: float = 0.5
    fan: bool = False
    name: str = "plain"
    mode: Literal["grill", "bake"] = "bake"
    level: Literal[1, 2] = 1
    minutes: int | None = None
    limit: float | None = None
    curve: tuple[float, ...] = (0.9, 0.98)
    files: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.heat < 0:
            raise ValueError(f"heat must not be negative, it is {self.heat}")


def parse_oven(**values: Any) -> Oven:
    return parse_settings(Oven, values, "oven")


def error_of(**values: Any) -> str:
    with pytest.raises(UserError) as caught:
        parse_oven(**values)
    return str(caught.value)


def test_missing_keys_take_the_defaults() -> None:
    assert parse_oven() == Oven()


def test_values_are_converted_to_the_types_of_the_dataclass() -> None:
    made = parse_oven(
        heat=200, share=0.25, fan=True, name="x", mode="grill", level=2, minutes=3, limit=1.5, curve=[0.1], files=["a"]
    )
    assert made == Oven(
        heat=200,
        share=0.25,
        fan=True,
        name="x",
        mode="grill",
        level=2,
        minutes=3,
        limit=1.5,
        curve=(0.1,),
        files=("a",),
    )
    assert isinstance(made.curve, tuple)


def test_null_is_accepted_only_for_optional_keys() -> None:
    made = parse_oven(minutes=None, limit=None, files=None)
    assert (made.minutes, made.limit, made.files) == (None, None, None)
    assert error_of(heat=None) == "oven.heat is a whole number, not None"


@pytest.mark.parametrize(("key", "right"), [("heta", "heat"), ("mod", "mode"), ("minute", "minutes")])
def test_unknown_key_suggests_the_nearest_one(key: str, right: str) -> None:
    assert error_of(**{key: 1}) == f"unknown key oven.{key}; did you mean {right!r}?"


def test_unknown_key_without_a_similar_one_lists_all() -> None:
    assert error_of(zzz=1).startswith("unknown key oven.zzz; there are curve, fan, files, heat, ")


def test_key_that_is_not_a_string_is_unknown() -> None:
    values: Any = {7: 1}
    with pytest.raises(UserError, match=r"unknown key oven\.7"):
        parse_settings(Oven, values, "oven")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("heat", "hot", "oven.heat is a whole number, not 'hot'"),
        ("heat", 1.5, "oven.heat is a whole number, not 1.5"),
        ("heat", True, "oven.heat is a whole number, not True"),
        ("heat", [1], "oven.heat is a whole number, not [1]"),
        ("share", "half", "oven.share is a number, not 'half'"),
        ("share", False, "oven.share is a number, not False"),
        ("share", "nan", "oven.share is a number, not 'nan'"),
        ("share", math.nan, "oven.share is a number, not nan"),
        ("share", None, "oven.share is a number, not None"),
        ("fan", 1, "oven.fan is true or false, not 1"),
        ("fan", "yes", "oven.fan is true or false, not 'yes'"),
        ("name", 3, "oven.name is text, not 3"),
        ("name", True, "oven.name is text, not True"),
        ("mode", "fry", "oven.mode is one of grill, bake, not 'fry'"),
        ("mode", ["bake"], "oven.mode is one of grill, bake, not ['bake']"),
        ("level", 3, "oven.level is one of 1, 2, not 3"),
        ("level", True, "oven.level is one of 1, 2, not True"),
        ("level", 1.0, "oven.level is one of 1, 2, not 1.0"),
        ("minutes", "ten", "oven.minutes is a whole number or null, not 'ten'"),
        ("limit", "low", "oven.limit is a number or null, not 'low'"),
        ("curve", 0.9, "oven.curve is a list, not 0.9"),
        ("curve", "0.9", "oven.curve is a list, not '0.9'"),
        ("curve", [0.9, "x"], "oven.curve is a number, not 'x'"),
        ("files", "a.tsv", "oven.files is a list or null, not 'a.tsv'"),
    ],
    ids=str,
)
def test_wrong_type_names_the_value_and_the_expected_type(key: str, value: Any, message: str) -> None:
    assert error_of(**{key: value}) == message


def test_number_too_large_for_a_float_is_refused() -> None:
    assert error_of(share=10**400).startswith("oven.share is a number, not 1000")


def test_error_of_a_section_check_names_the_section() -> None:
    assert error_of(heat=-1) == "oven: heat must not be negative, it is -1"


@pytest.mark.parametrize(("written", "number"), [("1e-6", 1e-6), ("2E3", 2000.0), ("1.5", 1.5), ("-1e-2", -0.01)])
def test_float_that_yaml_reads_as_text_is_a_number(written: str, number: float) -> None:
    made = parse_oven(share=written, limit=written, curve=[written])
    assert (made.share, made.limit, made.curve) == (number, number, (number,))


@given(st.floats(allow_nan=False))
def test_float_survives_conversion_from_text(number: float) -> None:
    assert convert_value(repr(number), float, "x") == number
    assert convert_value(number, float, "x") == number


@given(st.integers(-(2**53), 2**53))
def test_integers_and_whole_floats_convert_both_ways(number: int) -> None:
    as_int, as_float = convert_value(float(number), int, "x"), convert_value(number, float, "x")
    assert (type(as_int), as_int) == (int, number)
    assert (type(as_float), as_float) == (float, float(number))


def test_user_error_is_a_value_error() -> None:
    assert issubclass(UserError, ValueError)


def test_suggestion_is_the_closest_name() -> None:
    assert format_suggestion("layrs", ["layers", "lyre", "size"]) == "; did you mean 'layers'?"
    assert format_suggestion("q", ["size", "layers"]) == "; there are layers, size"


@dataclass(frozen=True, kw_only=True)
class Rack:
    width: PositiveInt = 4
    depth: PositiveInt | None = None
    slots: PositiveInt | Literal["auto"] = "auto"
    tilt: Fraction = 0.0
    colour: Annotated[int, "of a plug-in, with a note that is no range"] = 0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("width", 0, "rack: width must be at least 1, not 0"),
        ("width", 1_000_001, "rack: width must be at most 1,000,000, not 1000001"),
        ("depth", -1, "rack: depth must be at least 1, not -1"),
        ("slots", 0, "rack: slots must be at least 1, not 0"),
        ("tilt", 1.0, "rack: tilt must be at least 0 and below 1, not 1.0"),
        ("tilt", -0.1, "rack: tilt must be at least 0 and below 1, not -0.1"),
    ],
)
def test_annotated_types_limit_values(key: str, value: float, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_settings(Rack, {key: value}, "rack")
    assert str(caught.value) == message
    assert parse_settings(Rack, {"width": 1, "depth": None, "slots": "auto", "colour": 9}, "rack").width == 1
