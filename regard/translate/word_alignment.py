"""Convert attention over tokens to a word alignment, soft and by argmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.data.readers.text import Link
from regard.models.hypothesis import Floats


class Alignment(NamedTuple):
    """Soft and hard alignment of target words with source words; words are separated by white space."""

    source: list[str]
    target: list[str]
    soft: Floats  # target words × source words; the rest of a row, up to 1, is attention to the source's EOS
    pairs: list[Link]  # (source word, target word): for each target word the source word that it attends to most

    def replace_target_words(self, target: Sequence[str]) -> Alignment:
        """Return a copy with other target words; a text of several words repeats its row for each."""
        counts = [len(text.split()) for text in target]
        rows = np.repeat(np.arange(len(target)), counts)
        soft = self.soft[rows]
        return Alignment(self.source, " ".join(target).split(), soft, find_argmax_links(soft))


class TokenizedWords(NamedTuple):
    """The words of a text, the index of the word of each token, and the text of each token."""

    words: list[str]
    word_ids: Sequence[int]
    subwords: Sequence[str] = ()  # empty: punctuation tokens count as well


def shift_to_next_step(attention: Floats) -> Floats:
    """Replace each token's attention by that of the next step, which has read the token; the last keeps its own."""
    return np.concatenate((attention[1:], attention[-1:]))


def align_words(attention: Floats, source: TokenizedWords, target: TokenizedWords) -> Alignment:
    """Compute the word alignment from attention (target tokens × source tokens, EOS last on both sides).

    A source word has the sum of its tokens' weights, a target word the mean of its tokens' rows. Of the tokens of a
    target word only those with letters or digits count, if there are any: a full stop at the end of a word attends
    elsewhere.
    """
    shape = len(target.words), len(source.words)
    if not all(shape):
        return Alignment(source.words, target.words, np.zeros(shape, dtype=np.float32), [])
    columns = np.zeros((attention.shape[1], shape[1]), dtype=np.float32)
    columns[np.arange(len(source.word_ids)), source.word_ids] = 1
    rows = np.zeros((shape[0], attention.shape[0]), dtype=np.float32)
    rows[target.word_ids, np.arange(len(target.word_ids))] = 1
    has_letters = np.ones(attention.shape[0], dtype=np.float32)
    has_letters[: len(target.subwords)] = [any(map(str.isalnum, subword)) for subword in target.subwords]
    core = rows * has_letters
    rows = np.where(core.sum(1, keepdims=True) > 0, core, rows)
    rows /= np.maximum(rows.sum(1, keepdims=True), np.float32(1))
    soft = (rows @ attention @ columns).astype(np.float32)
    return Alignment(source.words, target.words, soft, find_argmax_links(soft))


def find_argmax_links(soft: Floats) -> list[Link]:
    """Link each target word to the source word that it attends to most, as in Luong 2015 (section 5.4)."""
    if not soft.size:
        return []
    strongest = soft.argmax(1)
    return sorted((int(source), target) for target, source in enumerate(strongest) if soft[target, source] > 0)
