"""Hashed n-grams of a text: of its words in lower case, and of the characters of its words as they are written.

Prefix, suffix and shape of each word, hashed as well, say something about words that are not in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple
from zlib import crc32

import numpy as np

from regard.data.dataset import Integers
from regard.data.tagging import compute_word_shape
from regard.tokenizers.words import find_tokens

_MIN_CHARACTERS = 3  # of a character n-gram; spaces at both ends of a word count
_AFFIX_LETTERS = 3
_START, _END = "<s>", "</s>"  # never words: punctuation marks are words of their own
NUM_AFFIXES = 3  # prefix, suffix, shape
_CACHED_WORDS = 1 << 16


class NgramHasher(NamedTuple):
    """Hashes the n-grams of a text to ids from 1 to `buckets` − 1; 0 is padding."""

    max_words: int  # longest word n-gram; 0: none
    max_characters: int  # longest character n-gram of a word; below 3: none
    buckets: int
    affix_buckets: int = 0  # 0: no prefixes, suffixes and shapes
    max_skipped: int = 0  # most words between two words of a pair, if there are pairs at all; 0: no such pairs

    def hash_affixes(self, text: str) -> list[int]:
        """Return `NUM_AFFIXES` ids for each word and punctuation mark of a text, one word after the other."""
        return [id for token in find_tokens(text) for id in _hash_affixes(token.text, self.affix_buckets)]

    def hash_text(self, text: str) -> tuple[Integers, Integers]:
        """Return the ids of all n-grams of a text, ascending and each once, and the index of the first word of each.

        Word n-grams include the start and the end of the text. Of an n-gram that occurs several times it is the first.
        """
        words = [token.text for token in find_tokens(text)]
        if not words:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        first_index = {word: index for index, word in reversed(list(enumerate(words)))}
        rows = [_hash_characters(word, self.max_characters) for word in first_index]
        indices = list(first_index.values())
        padded = [_encode(f" {word}") for word in (_START, *map(str.lower, words), _END)]
        max_skipped = self.max_skipped if self.max_words > 1 else 0
        for start, first in enumerate(padded):
            ngrams = list(accumulate(padded[start : start + self.max_words], _extend_crc, initial=0))[1:]
            skip = crc32(first, crc32(b"skip"))
            rows.append([*ngrams, *(crc32(other, skip) for other in padded[start + 2 : start + 2 + max_skipped])])
            indices.append(min(max(start - 1, 0), len(words) - 1))
        crcs = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
        ids, first_rows = np.unique(crcs % (self.buckets - 1) + 1, return_index=True)
        return ids, np.repeat(indices, list(map(len, rows)))[first_rows]


@lru_cache(_CACHED_WORDS)
def _hash_characters(word: str, max_size: int) -> Sequence[int]:
    """Return the checksums of the character n-grams of a word."""
    padded = f" {word} "
    return [
        crc32(_encode("c" + padded[start : start + size]))
        for size in range(_MIN_CHARACTERS, max_size + 1)
        for start in range(len(padded) - size + 1)
    ]


@lru_cache(_CACHED_WORDS)
def _hash_affixes(word: str, buckets: int) -> Sequence[int]:
    """Return the ids of prefix, suffix and shape of a word."""
    lowered = word.lower()
    affixes = f"p{lowered[:_AFFIX_LETTERS]}", f"s{lowered[-_AFFIX_LETTERS:]}", f"h{compute_word_shape(word)}"
    return [_hash(affix, buckets) for affix in affixes]


def _hash(ngram: str, buckets: int) -> int:
    return crc32(_encode(ngram)) % (buckets - 1) + 1


def _extend_crc(crc: int, data: bytes) -> int:
    return crc32(data, crc)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
