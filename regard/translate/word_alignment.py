"""From attention over tokens to an alignment of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.evaluate import Link
from regard.search import Floats

Bools = npt.NDArray[np.bool_]


class Alignment(NamedTuple):
    """Which source word each target word looked at; words are what stands between white space."""

    source: list[str]
    target: list[str]
    soft: Floats  # target words × source words; what is missing to 1 in a row went to the source's EOS
    pairs: list[Link]  # (source word, target word): for each target word the source word that it looked at most

    def replace_target_words(self, target: Sequence[str]) -> Alignment:
        """The same with other texts for the target words; one that has several words has the row of one for each."""
        counts = [len(text.split()) for text in target]
        rows = np.repeat(np.arange(len(target)), counts)
        soft = self.soft[rows]
        return Alignment(self.source, " ".join(target).split(), soft, find_argmax_links(soft))


class TokenizedWords(NamedTuple):
    """The words of a text, and for each token the word that it is part of and the way it is written."""

    words: list[str]
    word_ids: Sequence[int]
    subwords: Sequence[str] = ()  # none: every token counts as a word's


def shift_to_next_step(attention: Floats) -> Floats:
    """Of each token the look of the step after it, which has read it; the last has none after it but its own."""
    return np.concatenate((attention[1:], attention[-1:]))


def align_words(attention: Floats, source: TokenizedWords, target: TokenizedWords) -> Alignment:
    """The alignment of two texts' words, of attention over target tokens × source tokens (EOS last on both sides).

    A source word has the sum of its tokens' weights, a target word the mean of its tokens' rows; of the tokens of a
    target word those with letters or digits count, where it has any: a full stop that is written to a word looks
    elsewhere.
    """
    shape = len(target.words), len(source.words)
    if not all(shape):
        return Alignment(source.words, target.words, np.zeros(shape, dtype=np.float32), [])
    columns = np.zeros((attention.shape[1], shape[1]), dtype=np.float32)
    columns[np.arange(len(source.word_ids)), source.word_ids] = 1
    rows = np.zeros((shape[0], attention.shape[0]), dtype=np.float32)
    rows[target.word_ids, np.arange(len(target.word_ids))] = 1
    spoken = np.ones(attention.shape[0], dtype=np.float32)
    spoken[: len(target.subwords)] = [any(map(str.isalnum, piece)) for piece in target.subwords]
    core = rows * spoken
    rows = np.where(core.sum(1, keepdims=True) > 0, core, rows)
    rows /= np.maximum(rows.sum(1, keepdims=True), np.float32(1))
    soft = (rows @ attention @ columns).astype(np.float32)
    return Alignment(source.words, target.words, soft, find_argmax_links(soft))


def find_argmax_links(soft: Floats) -> list[Link]:
    """Each target word with the source word that it looked at most, as Luong 2015 (section 5.4) has it."""
    if not soft.size:
        return []
    strongest = soft.argmax(1)
    return sorted((int(source), target) for target, source in enumerate(strongest) if soft[target, source] > 0)
