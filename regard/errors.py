"""Errors caused by user input, with one-sentence messages that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from reprlib import Repr


class UserError(ValueError):
    """A mistake in user input (a file, a key, a value): the command line prints its message and exits with status 2."""


def make_nan_error(step: int) -> ArithmeticError:
    """Return the error that a search raises if a model's probabilities are NaN or inf."""
    return ArithmeticError(f"the model's probabilities at step {step} are NaN or inf: the weights are damaged")


_SHORT_REPR = Repr()
_SHORT_REPR.maxlevel, _SHORT_REPR.maxstring, _SHORT_REPR.maxother, _SHORT_REPR.maxlong = 3, 300, 300, 300


def short_repr(value: object) -> str:
    """Return `repr(value)`, shortened if it is long: a few lines of YAML can expand to gigabytes.

    >>> short_repr(["a", 1.5])
    "['a', 1.5]"
    """
    return _SHORT_REPR.repr(value)


def to_single_line(message: object) -> str:
    """Return a message of a library, or text of a file, on one line."""
    return " ".join(str(message).split())


def format_suggestion(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str:
    """Return `"; did you mean 'size'?"` if one of `choices` is close to `word`, else a list of all choices.

    >>> format_suggestion("sise", ["size", "layers"])
    "; did you mean 'size'?"
    """
    names = sorted(choices)
    close = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
