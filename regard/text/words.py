"""Whole words with `<unk>` for the rare ones, as the papers before subwords had them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.errors import UserError
from regard.symbols import BOS, EOS, NAMES, PAD, UNK
from regard.text.tags import no_tag, tag_piece

TOKEN = re.compile(r"<unk>|\w+(?:[-'’]\w+)*|[^\w\s]")
TAG = re.compile(r"<\w+>")
CLOSES = frozenset(".,;:!?…)]}%»")  # no space before
OPENS = frozenset("([{«„")  # no space after


class Words:
    """Words and marks of punctuation, the most frequent first; `it's` and `well-kept` are one word each."""

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = False) -> None:
        self.vocabulary = list(vocabulary)
        self.lowercase = lowercase
        self.ids = {word: number for number, word in enumerate(self.vocabulary)}

    @classmethod
    def learn(cls, lines: Iterable[str], size: int, lowercase: bool = False, tags: Sequence[str] = ()) -> Words:
        """The `size` most frequent words, tags and ids 0 to 3 included; among equals the alphabet decides."""
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(TOKEN.findall(line.lower() if lowercase else line))
        ranked = sorted((word for word in counts if word not in NAMES), key=lambda word: (-counts[word], word))
        first = [*NAMES, *map(tag_piece, tags)]
        return cls([*first, *ranked[: max(0, size - len(first))]], lowercase)

    @classmethod
    def load(cls, path: Path, lowercase: bool = False) -> Words:
        """Reads what `save` wrote."""
        try:
            *vocabulary, rest = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a vocabulary: it is not UTF-8") from error
        each_once = len(set(vocabulary)) == len(vocabulary) and all(word.split() == [word] for word in vocabulary)
        if rest or tuple(vocabulary[:4]) != NAMES or not each_once:
            raise UserError(f"{path} is not a vocabulary: one word a line, each once, the first four {' '.join(NAMES)}")
        return cls(vocabulary, lowercase)

    def save(self, path: Path) -> None:
        """One word a line; the line's number, from 0, is the id."""
        path.write_text("".join(word + "\n" for word in self.vocabulary), encoding="utf-8")

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary)

    def split(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and the white-space word of each."""
        ids, words = [], []
        for number, word in enumerate((text.lower() if self.lowercase else text).split()):
            for token in TOKEN.findall(word):
                ids.append(self.ids.get(token, UNK))
                words.append(number)
        return ids, words

    def encode(self, text: str) -> list[int]:
        """The ids alone."""
        return [self.ids.get(token, UNK) for token in TOKEN.findall(text.lower() if self.lowercase else text)]

    def tag(self, name: str) -> int:
        """The id of a tag that the vocabulary was learnt with."""
        id = self.ids.get(tag_piece(name), UNK)
        if id < len(NAMES):
            raise no_tag(name, [self.vocabulary[id][1:-1] for id in range(self.size) if self.is_tag(id)])
        return id

    def is_tag(self, id: int) -> bool:
        """Whether an id is that of a tag: no word of a text has a form like that."""
        return id >= len(NAMES) and TAG.fullmatch(self.vocabulary[id]) is not None

    def resample(self, sentences: Sequence[Sequence[int]], dropout: float, seed: int) -> list[list[int]]:
        """Words have no parts, so that there is nothing to leave out."""
        return [list(ids) for ids in sentences]

    def decode(self, ids: Sequence[int]) -> str:
        """Words with a space between, punctuation set as in ordinary text."""
        pieces, words = self.pieces(ids), self.words(ids)
        before = [-1, *words]
        spoken = zip(ids, pieces, words, before, strict=False)
        return "".join(
            (" " if word > last else "") + piece for id, piece, word, last in spoken if not self.is_silent(id)
        ).strip()

    def words(self, ids: Sequence[int]) -> list[int]:
        """The word of `decode(ids)` that each id is part of; a silent id counts with the word before it."""
        numbers, number, glued = [], -1, False
        for id, piece in zip(ids, self.pieces(ids), strict=True):
            if not self.is_silent(id):
                number += number < 0 or not (glued or piece in CLOSES)
                glued = piece in OPENS
            numbers.append(max(number, 0))
        return numbers

    def is_silent(self, id: int) -> bool:
        """Whether an id adds nothing to a text."""
        return id in (PAD, BOS, EOS) or self.is_tag(id)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The words themselves."""
        return [self.vocabulary[id] for id in ids]

    def word_ends(self) -> None:
        """Every id is a whole word."""
        return
