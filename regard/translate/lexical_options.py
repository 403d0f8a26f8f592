"""Words that a translation must hold, must not hold, or cannot know."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from operator import contains

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search import Constraint, Floats, Phrase
from regard.special_tokens import SPECIAL_TOKENS, UNK
from regard.tokenizers import Tokenizer

EDGE_PUNCTUATION = re.compile(r"^\W++|(?<!\W)\W++$")
MAX_TAIL_TOKENS = 64  # tokens at the end of what was written that are looked at for a forbidden word


def encode_phrase(tokenizer: Tokenizer, words: str) -> Phrase:
    """Words to force, as the vocabulary spells them; they are whole words, not the beginning of longer ones."""
    ids = tokenizer.encode(words)
    if not ids or UNK in ids:
        raise UserError(f"{words!r} cannot be forced: the vocabulary has no way to spell it")
    return Phrase(tuple(ids), tokenizer.find_word_boundary_ids())


def encode_prefix(tokenizer: Tokenizer, text: str) -> list[int]:
    """What a translation is to begin with; an unknown word only where it is written as one."""
    ids = tokenizer.encode(text)
    if UNK in ids and SPECIAL_TOKENS[UNK] not in text:
        raise UserError(f"the prefix {text!r} cannot be spelled: the vocabulary does not have all of its words")
    return ids


class Glossary:
    """Terms of the source and how they must be translated; of terms in each other the longest counts."""

    def __init__(self, tokenizer: Tokenizer, entries: Mapping[str, str]) -> None:
        self.phrases = {term.casefold(): encode_phrase(tokenizer, words) for term, words in entries.items()}
        known = "|".join(re.escape(term) for term in sorted(entries, key=len, reverse=True))
        self.pattern = re.compile(rf"(?<![\w-])(?:{known})(?![\w-])", re.IGNORECASE) if entries else None

    def find_phrases(self, text: str) -> list[Phrase]:
        """What a text's terms must become, a term that comes twice twice."""
        found = self.pattern.findall(text) if self.pattern else []
        return [self.phrases[term.casefold()] for term in found if term.casefold() in self.phrases]


class ForbiddenWords:
    """A rule for the search: no word or phrase of these ends, in whatever pieces it was spelled, small or capital."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.forbidden = {tuple(_normalize_word(word) for word in phrase.split()) for phrase in words}
        self.longest = max(map(len, self.forbidden), default=0)
        ends = tokenizer.find_word_boundary_ids()
        self.word_end_ids = torch.tensor(sorted(range(tokenizer.vocab_size) if ends is None else ends))

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `regard.search.Constraint`."""
        bad = [row for row, ids in enumerate(written[:, -MAX_TAIL_TOKENS:].tolist()) if self.ends_in_forbidden(ids)]
        if bad:
            rows = torch.tensor(bad, device=log_probs.device)[:, None]
            log_probs[rows, self.word_end_ids.to(log_probs.device)] = -torch.inf

    def ends_in_forbidden(self, ids: Sequence[int]) -> bool:
        """Whether what was written ends in a forbidden word or phrase."""
        words = [_normalize_word(word) for word in self.tokenizer.decode(ids).split()[-self.longest :]]
        return any(tuple(words[-size:]) in self.forbidden for size in range(1, len(words) + 1))


class ForbiddenPhrases:
    """A rule for the search: no phrase of these is written, where each of its words is one token, small or capital."""

    def __init__(self, phrases: Sequence[Sequence[Collection[int]]]) -> None:
        self.phrases = phrases  # for each word of a phrase the tokens that spell it
        self.longest = max(map(len, phrases))

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `regard.search.Constraint`."""
        for row, ids in enumerate(written[:, -self.longest :].tolist()):
            for *before, last in self.phrases:
                tail = ids[-len(before) :]
                if len(tail) == len(before) and all(map(contains, before, tail)):
                    log_probs[row, list(last)] = -torch.inf


def _normalize_word(word: str) -> str:
    """A word without the marks around it, in small letters."""
    return EDGE_PUNCTUATION.sub("", word).casefold()


def compile_forbidden(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[tuple[int, ...]], list[Constraint]]:
    """Sequences of ids, and rules, that keep words out: marks are ids, words are spelled in many ways."""
    if not words:
        return [], []  # at once: a service asks for every request
    for word in words:
        if not word.strip():
            raise UserError("there is an empty word among those to forbid")
    marks = [word for word in words if not _normalize_word(word)]
    rest = [word for word in words if _normalize_word(word)]
    pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    found: list[tuple[int, ...]] = [
        (id,) for id, piece in enumerate(pieces) if any(mark.strip() in piece for mark in marks)
    ]
    found += [tuple(ids) for ids in map(tokenizer.encode, marks) if UNK not in ids]
    if not rest:
        return found, []
    if tokenizer.find_word_boundary_ids() is not None:
        return found, [ForbiddenWords(tokenizer, rest)]
    spelled: dict[str, list[int]] = {}
    for id, piece in enumerate(pieces):
        spelled.setdefault(piece.casefold(), []).append(id)
    phrases = [[spelled.get(word.casefold(), []) for word in words_.split()] for words_ in rest]
    found += [(id,) for phrase in phrases if len(phrase) == 1 for id in phrase[0]]
    found += [tuple(ids) for ids in map(tokenizer.encode, rest) if ids and UNK not in ids]
    longer = [phrase for phrase in phrases if len(phrase) > 1 and all(phrase)]
    return list(dict.fromkeys(found)), [ForbiddenPhrases(longer)] if longer else []


def find_unknown_replacements(
    ids: Sequence[int], attention: Floats, source: Sequence[str], dictionary: Mapping[str, str]
) -> list[str]:
    """For each `<unk>` among the ids the source word it looked at most, or that word's entry in the dictionary.

    `attention` is the ids' over source tokens, EOS last; `source` is the word of each source token.
    """
    rows = [row for row, id in enumerate(ids) if id == UNK]
    looked = [source[int(attention[row, : len(source)].argmax())] for row in rows]
    words = [EDGE_PUNCTUATION.sub("", word) or word for word in looked]  # a mark may be all there is
    return [dictionary.get(word, word) for word in words]


def replace_unknown(texts: Sequence[str], words: Sequence[str]) -> list[str]:
    """Texts with the words put in the places of `<unk>`, one after the other."""
    rest = iter(words)
    return [re.sub(re.escape(SPECIAL_TOKENS[UNK]), lambda found: next(rest, found[0]), text) for text in texts]
