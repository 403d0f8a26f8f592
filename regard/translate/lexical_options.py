"""Lexical constraints of a translation: forced phrases, prefix, glossary, forbidden words, <unk> replacement."""

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
MAX_TAIL_TOKENS = 64  # last tokens of a hypothesis that are searched for a forbidden word


def encode_phrase(tokenizer: Tokenizer, words: str) -> Phrase:
    """Return a phrase to force, as ids of whole words; raise UserError if the vocabulary cannot spell it."""
    ids = tokenizer.encode(words)
    if not ids or UNK in ids:
        raise UserError(f"{words!r} cannot be forced: the vocabulary cannot spell it")
    return Phrase(tuple(ids), tokenizer.find_word_boundary_ids())


def encode_prefix(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a target prefix; raise UserError for an unknown word, unless it is written as `<unk>`."""
    ids = tokenizer.encode(text)
    if UNK in ids and SPECIAL_TOKENS[UNK] not in text:
        raise UserError(f"the prefix {text!r} cannot be spelled: the vocabulary does not have all of its words")
    return ids


class Glossary:
    """Source terms and their required translations; of overlapping terms the longest one counts."""

    def __init__(self, tokenizer: Tokenizer, entries: Mapping[str, str]) -> None:
        self.phrases = {term.casefold(): encode_phrase(tokenizer, words) for term, words in entries.items()}
        known = "|".join(re.escape(term) for term in sorted(entries, key=len, reverse=True))
        self.pattern = re.compile(rf"(?<![\w-])(?:{known})(?![\w-])", re.IGNORECASE) if entries else None

    def find_phrases(self, text: str) -> list[Phrase]:
        """Return the phrases that the terms of a text must become, one per occurrence."""
        terms = self.pattern.findall(text) if self.pattern else []
        return [self.phrases[term.casefold()] for term in terms if term.casefold() in self.phrases]


class ForbiddenWords:
    """Search constraint that forbids words and phrases, however they are split into subwords, ignoring case."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.forbidden = {tuple(_normalize_word(word) for word in phrase.split()) for phrase in words}
        self.longest = max(map(len, self.forbidden), default=0)
        ends = tokenizer.find_word_boundary_ids()
        self.word_end_ids = torch.tensor(sorted(range(tokenizer.vocab_size) if ends is None else ends))

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `regard.search.Constraint`."""
        forbidden_rows = [
            row for row, ids in enumerate(written[:, -MAX_TAIL_TOKENS:].tolist()) if self.ends_in_forbidden(ids)
        ]
        if forbidden_rows:
            rows = torch.tensor(forbidden_rows, device=log_probs.device)[:, None]
            log_probs[rows, self.word_end_ids.to(log_probs.device)] = -torch.inf

    def ends_in_forbidden(self, ids: Sequence[int]) -> bool:
        """Return True if the ids end in a forbidden word or phrase."""
        words = [_normalize_word(word) for word in self.tokenizer.decode(ids).split()[-self.longest :]]
        return any(tuple(words[-size:]) in self.forbidden for size in range(1, len(words) + 1))


class ForbiddenPhrases:
    """Search constraint for word vocabularies: forbid phrases each of whose words is one token, ignoring case."""

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
    """Strip punctuation around a word and fold its case."""
    return EDGE_PUNCTUATION.sub("", word).casefold()


def compile_forbidden(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[tuple[int, ...]], list[Constraint]]:
    """Return id sequences and search constraints that forbid words: punctuation marks by ids, words by constraints."""
    if not words:
        return [], []  # quickly: a service compiles options for every request
    for word in words:
        if not word.strip():
            raise UserError("the words to forbid contain an empty word")
    marks = [word for word in words if not _normalize_word(word)]
    with_letters = [word for word in words if _normalize_word(word)]
    tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    sequences: list[tuple[int, ...]] = [
        (id,) for id, token in enumerate(tokens) if any(mark.strip() in token for mark in marks)
    ]
    sequences += [tuple(ids) for ids in map(tokenizer.encode, marks) if UNK not in ids]
    if not with_letters:
        return sequences, []
    if tokenizer.find_word_boundary_ids() is not None:
        return sequences, [ForbiddenWords(tokenizer, with_letters)]
    ids_by_word: dict[str, list[int]] = {}
    for id, token in enumerate(tokens):
        ids_by_word.setdefault(token.casefold(), []).append(id)
    phrases = [[ids_by_word.get(word.casefold(), []) for word in phrase.split()] for phrase in with_letters]
    sequences += [(id,) for phrase in phrases if len(phrase) == 1 for id in phrase[0]]
    sequences += [tuple(ids) for ids in map(tokenizer.encode, with_letters) if ids and UNK not in ids]
    longer = [phrase for phrase in phrases if len(phrase) > 1 and all(phrase)]
    return list(dict.fromkeys(sequences)), [ForbiddenPhrases(longer)] if longer else []


def find_unknown_replacements(
    ids: Sequence[int], attention: Floats, source: Sequence[str], dictionary: Mapping[str, str]
) -> list[str]:
    """Return, for each `<unk>`, the source word with the highest attention, or its dictionary entry.

    Args:
        ids: Target ids.
        attention: Attention of these ids over source tokens, EOS last.
        source: The word of each source token.
        dictionary: Translations that are used instead of the source word.
    """
    rows = [row for row, id in enumerate(ids) if id == UNK]
    attended = [source[int(attention[row, : len(source)].argmax())] for row in rows]
    words = [EDGE_PUNCTUATION.sub("", word) or word for word in attended]  # a token may be punctuation only
    return [dictionary.get(word, word) for word in words]


def replace_unknown(texts: Sequence[str], words: Sequence[str]) -> list[str]:
    """Replace each `<unk>` of the texts by the next of the words."""
    replacements = iter(words)
    return [re.sub(re.escape(SPECIAL_TOKENS[UNK]), lambda match: next(replacements, match[0]), text) for text in texts]
