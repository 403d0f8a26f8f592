"""The labels that a model chooses from, and their ids."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regard.errors import UserError, format_suggestion, short_repr

_MAX_LABELS = 1_000_000  # labels; more are texts that were taken for labels


class LabelVocabulary:
    """Names in sorted order; the place of each is its id, from 0."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(set(names))
        self.ids = {name: number for number, name in enumerate(self.names)}
        for name in self.names:
            if not is_valid_label(name):
                raise UserError(f"a label is one line of text without tabs, not {short_repr(name)}")
        if not 0 < len(self.names) <= _MAX_LABELS:
            raise UserError(f"there is at least one label and at most {_MAX_LABELS:,}, not {len(self.names):,}")

    @classmethod
    def load(cls, path: Path) -> LabelVocabulary:
        """Reads what `save` wrote."""
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
        """One name a line; the line's number, from 0, is the id."""
        path.write_bytes("".join(name + "\n" for name in self.names).encode("utf-8"))

    @property
    def num_labels(self) -> int:
        """Number of labels."""
        return len(self.names)

    def find_id(self, name: str) -> int:
        """The id of a name; an error where there is no such label."""
        if name not in self.ids:
            raise UserError(f"there is no label {short_repr(name)}{format_suggestion(name, self.names[:100])}")
        return self.ids[name]

    def find_name(self, id: int) -> str:
        """The name of an id."""
        return self.names[id]


def is_valid_label(name: str) -> bool:
    """Whether a name stands in one line, with nothing around it that nobody sees, and before a tab."""
    return name.splitlines() == [name] and name == name.strip() and "\t" not in name
