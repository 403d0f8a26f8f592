"""What went wrong because of something a user gave, in one sentence that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from reprlib import Repr


class UserError(ValueError):
    """A mistake in what was given (a file, a key, a value): the command line prints it alone and exits with 2."""


def make_nan_error(step: int) -> ArithmeticError:
    """What a search raises where a model's numbers are none."""
    return ArithmeticError(f"the model's probabilities at step {step} are not numbers: weights are damaged")


_SHORT_REPR = Repr()
_SHORT_REPR.maxlevel, _SHORT_REPR.maxstring, _SHORT_REPR.maxother, _SHORT_REPR.maxlong = 3, 300, 300, 300


def short_repr(value: object) -> str:
    """A value as Python writes it, cut short where it is long: YAML can hold in a few lines what fills a memory.

    >>> shown(["a", 1.5])
    "['a', 1.5]"
    """
    return _SHORT_REPR.repr(value)


def format_suggestion(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str:
    """`"; did you mean 'size'?"` where one of `choices` is close to `word`, and all of them where none is.

    >>> nearest("sise", ["size", "layers"])
    "; did you mean 'size'?"
    """
    names = sorted(choices)
    close = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
