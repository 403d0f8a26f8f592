"""From attention over tokens to an alignment of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.evaluate import Link

Floats = npt.NDArray[np.float32]


class Alignment(NamedTuple):
    """Which source word each target word looked at; words are what stands between white space."""

    source: list[str]
    target: list[str]
    soft: Floats  # target words × source words; what is missing to 1 in a row went to the source's EOS
    pairs: list[Link]  # (source word, target word): for each target word the source word that it looked at most


def word_weights(
    attention: Floats, source_words: Sequence[int], target_words: Sequence[int], shape: tuple[int, int]
) -> Floats:
    """Attention of target tokens × source tokens (EOS last on both sides) as target words × source words.

    A source word has the sum of its tokens' weights, a target word the mean of its tokens' rows.
    """
    targets, sources = shape
    if not targets or not sources:
        return np.zeros(shape, dtype=np.float32)
    columns = np.zeros((attention.shape[1], sources), dtype=np.float32)
    columns[np.arange(len(source_words)), source_words] = 1
    rows = np.zeros((targets, attention.shape[0]), dtype=np.float32)
    rows[target_words, np.arange(len(target_words))] = 1
    rows /= np.maximum(rows.sum(1, keepdims=True), np.float32(1))
    return (rows @ attention @ columns).astype(np.float32)


def links(soft: Floats) -> list[Link]:
    """Each target word with the source word that it looked at most, as Luong 2015 (section 5.4) has it."""
    if not soft.size:
        return []
    strongest = soft.argmax(1)
    return sorted((int(source), target) for target, source in enumerate(strongest) if soft[target, source] > 0)


def align_words(
    attention: Floats,
    source: tuple[Sequence[str], Sequence[int]],
    target: tuple[Sequence[str], Sequence[int]],
) -> Alignment:
    """The alignment of two texts' words, each given with the word that every one of its tokens is part of."""
    (source_text, source_words), (target_text, target_words) = source, target
    soft = word_weights(attention, source_words, target_words, (len(target_text), len(source_text)))
    return Alignment(list(source_text), list(target_text), soft, links(soft))
