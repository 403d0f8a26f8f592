"""Vocabulary of the labels of classifiers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regard.errors import UserError, format_suggestion, short_repr

_MAX_LABELS = 1_000_000  # with more, texts were probably read as labels


class LabelVocabulary:
    """Labels in sorted order; a label's id is its index."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(set(names))
        self.ids = {name: number for number, name in enumerate(self.names)}
        for name in self.names:
            if not is_valid_label(name):
                raise UserError(f"a label is one line of text without tabs, not {short_repr(name)}")
        if not 0 < len(self.names) <= _MAX_LABELS:
            raise UserError(f"the number of labels is between 1 and {_MAX_LABELS:,}, not {len(self.names):,}")

    @classmethod
    def load(cls, path: Path) -> LabelVocabulary:
        """Read the labels that `save` wrote."""
        if not path.is_file():
            raise UserError(f"{path} is missing: the run has no labels")
        try:
            *names, rest = path.read_bytes().decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} does not hold labels: it is not UTF-8") from error
        if rest or not names or names != sorted(set(names)) or not all(map(is_valid_label, names)):
            raise UserError(f"{path} does not hold labels: one a line, each once, in order")
        return cls(names)

    def save(self, path: Path) -> None:
        """Write one label a line; the line number, counted from 0, is the id."""
        path.write_bytes("".join(name + "\n" for name in self.names).encode("utf-8"))

    def find_id(self, name: str) -> int:
        """Return the id of a label; raise a UserError if the vocabulary does not contain it."""
        if name not in self.ids:
            raise UserError(f"there is no label {short_repr(name)}{format_suggestion(name, self.names[:100])}")
        return self.ids[name]


def is_valid_label(name: str) -> bool:
    """Return True if a label is one line without tabs and without white space around it."""
    return name.splitlines() == [name] and name == name.strip() and "\t" not in name
