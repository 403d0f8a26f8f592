"""Which of a model's looks at the source aligns best: by gold alignments, or by how well words choose each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from regard.data.sampler import split_by_tokens
from regard.errors import UserError
from regard.evaluate import GoldAlignment, Link, compute_gold_alignment_score
from regard.models import AlignmentHead, Seq2Seq
from regard.search import Floats
from regard.special_tokens import BOS
from regard.tokenizers import Tokenizers
from regard.translate.decoding_trace import encode_pair, get_single_model, to_numpy
from regard.translate.translator import Translator
from regard.translate.word_alignment import Alignment, align_words, shift_to_next_step

ALL_HEADS_BATCH_TOKENS = 1000  # of a side, with padding: the attention of all heads is kept at once


class HeadScore(NamedTuple):
    """A viewpoint, the share of words that are linked both ways, and the alignment error rate where gold is known."""

    alignment_head: AlignmentHead
    mutual_fraction: float
    aer: float | None


def choose_alignment_head(
    model: Seq2Seq, tokenizers: Tokenizers, pairs: Sequence[tuple[str, str]], device: torch.device
) -> AlignmentHead:
    """Return the layer and head by which a model aligns best, without gold alignments; the model stays as it is."""
    own, training = model.decoder.alignment_head, model.training
    try:
        return rank_alignment_heads(Translator([model], tokenizers, device), pairs)[0].alignment_head
    finally:
        model.decoder.alignment_head = own
        model.train(training)


def rank_alignment_heads(
    translator: Translator, pairs: Sequence[tuple[str, str]], gold: Sequence[GoldAlignment] | None = None
) -> list[HeadScore]:
    """Every viewpoint of the model, the best first; the translator is left with the best.

    Without gold the best is the one by which most words are linked both ways: each is what the other looks at most.
    """
    decoder = get_single_model(translator).decoder
    points = [point._replace(shifted=after) for point in decoder.alignment_heads() for after in (False, True)]
    if not points:
        raise UserError("this model looks at the source from one place only; there is nothing to choose")
    words, both = 0, [0] * len(points)
    links: list[list[set[Link]]] = [[set() for _ in pairs] for _ in points]
    sizes = np.array([max(map(len, encode_pair(translator, *pair))) + 1 for pair in pairs], dtype=np.int64)
    for rows in split_by_tokens(np.argsort(sizes, kind="stable"), sizes, ALL_HEADS_BATCH_TOKENS):
        some = _align_by_every_head(translator, [pairs[row] for row in rows])
        for row, found in zip(rows.tolist(), some, strict=True):
            words += sum(found[0].soft.shape)
            for number, one in enumerate(found):
                both[number] += 2 * count_mutual_links(one.soft)
                if gold is not None:
                    links[number][row] = set(one.pairs)
    tried = [
        HeadScore(point, linked / max(1, words), None if gold is None else compute_gold_alignment_score(some, gold).aer)
        for point, linked, some in zip(points, both, links, strict=True)
    ]
    tried.sort(key=lambda one: -one.mutual_fraction if one.aer is None else one.aer)
    decoder.alignment_head = tried[0].alignment_head
    return tried


@torch.inference_mode()
def _align_by_every_head(translator: Translator, pairs: Sequence[tuple[str, str]]) -> list[list[Alignment]]:
    """Return the alignment of each pair from every viewpoint, at the step of a word and at the next one."""
    model, ids = get_single_model(translator), [encode_pair(translator, *pair) for pair in pairs]
    batch, lengths = translator.make_batch([source for source, _ in ids])
    target_in, _ = translator.make_batch(
        [[BOS, *target[:-1]] for _, target in ids]
    )  # what follows a target is not read
    looks = [to_numpy(look) for look in model.decoder.attention_by_head(model.encode(batch, lengths), target_in)]
    found = []
    for row, (pair, (source, target)) in enumerate(zip(pairs, ids, strict=True)):
        own = [look[row, : len(target), : len(source) + 1] for look in looks]
        both = translator.tokenize_pair(pair)
        found.append([align_words(step(look), *both) for look in own for step in (np.asarray, shift_to_next_step)])
    return found


def count_mutual_links(soft: Floats) -> int:
    """How many links of target and source words there are in which each is the other's strongest."""
    if not soft.size:
        return 0
    strongest = soft.argmax(1)
    linked = soft.max(1) > 0
    return int((linked & (soft.argmax(0)[strongest] == np.arange(len(soft)))).sum())
