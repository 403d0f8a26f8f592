"""Words that a translation must hold, must not hold, or cannot know."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search import Phrase
from regard.symbols import NAMES, UNK
from regard.text import Tokenizer
from regard.translate.alignment import Floats

MARKS = re.compile(r"^\W+|\W+$")


def phrase(tokenizer: Tokenizer, words: str) -> Phrase:
    """Words to force, as the vocabulary spells them; they are whole words, not the beginning of longer ones."""
    ids = tokenizer.encode(words)
    if not ids or UNK in ids:
        raise UserError(f"{words!r} cannot be forced: the vocabulary has no way to spell it")
    return Phrase(tuple(ids), tokenizer.word_ends())


def terms(glossary: Mapping[str, str], text: str) -> list[str]:
    """The translations that a glossary prescribes for the terms in a text; of terms in each other the longest."""
    if not glossary:
        return []
    known = sorted(glossary, key=len, reverse=True)
    pattern = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, known)) + r")(?!\w)")
    return [glossary[found] for found in pattern.findall(text)]


class ForbiddenWords:
    """A rule for the search: no word or phrase of these ends, in whatever pieces it was spelled, small or capital."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.forbidden = {tuple(bare(word) for word in words_.split()) for words_ in words}
        self.longest = max(map(len, self.forbidden), default=0)
        ends = tokenizer.word_ends()
        self.ends = torch.tensor(sorted(range(tokenizer.size) if ends is None else ends))

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `regard.search.Rule`."""
        bad = [row for row, ids in enumerate(written.tolist()) if self.would_end(ids)]
        if bad:
            rows = torch.tensor(bad, device=log_probs.device)[:, None]
            log_probs[rows, self.ends.to(log_probs.device)] = -torch.inf

    def would_end(self, ids: Sequence[int]) -> bool:
        """Whether what was written ends in a forbidden word or phrase."""
        words = [bare(word) for word in self.tokenizer.decode(ids).split()[-self.longest :]]
        return any(tuple(words[-size:]) in self.forbidden for size in range(1, len(words) + 1))


def bare(word: str) -> str:
    """A word without the marks around it, in small letters."""
    return MARKS.sub("", word).casefold()


def sequences(tokenizer: Tokenizer, words: Sequence[str]) -> list[tuple[int, ...]]:
    """All ways to write forbidden words where each word is one id: with small letters and with capitals."""
    spelled: dict[str, list[int]] = {}
    for id, piece in enumerate(tokenizer.pieces(range(tokenizer.size))):
        spelled.setdefault(piece.casefold(), []).append(id)
    found: list[tuple[int, ...]] = []
    for phrase in words:
        ids = [spelled.get(piece.casefold(), []) for piece in phrase.split()]
        found += [*itertools.product(*ids), tuple(tokenizer.encode(phrase))]
    return [ids for ids in dict.fromkeys(found) if ids and UNK not in ids]


def looked_at(ids: Sequence[int], attention: Floats, source: Sequence[str], dictionary: Mapping[str, str]) -> list[str]:
    """For each `<unk>` among the ids the source word it looked at most, or that word's entry in the dictionary.

    `attention` is the ids' over source tokens, EOS last; `source` is the word of each source token.
    """
    rows = [row for row, id in enumerate(ids) if id == UNK]
    looked = [source[int(attention[row, : len(source)].argmax())] for row in rows]
    words = [MARKS.sub("", word) or word for word in looked]  # a mark may be all there is
    return [dictionary.get(word, word) for word in words]


def filled(texts: Sequence[str], words: Sequence[str]) -> list[str]:
    """Texts with the words put in the places of `<unk>`, one after the other."""
    rest = iter(words)
    return [re.sub(re.escape(NAMES[UNK]), lambda found: next(rest, found[0]), text) for text in texts]
