"""Choose the alignment head of a model: the layer and head whose attention aligns words best.

The measure is the alignment error rate with gold alignments, or the fraction of mutual links without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from regard.errors import UserError
from regard.evaluate import GoldAlignment, Link, compute_gold_alignment_score
from regard.models import AlignmentHead, Seq2Seq
from regard.search import Floats
from regard.special_tokens import BOS
from regard.tokenizers import Tokenizers
from regard.translate.backends.torch import split_by_length
from regard.translate.decoding_trace import encode_pair, get_single_model, to_numpy
from regard.translate.translator import Translator
from regard.translate.word_alignment import Alignment, align_words, shift_to_next_step

ALL_HEADS_BATCH_TOKENS = 1000  # tokens of one side, with padding: the attention of all heads is in memory at once


class HeadScore(NamedTuple):
    """An alignment head, the fraction of words with mutual links, and the alignment error rate if gold is given."""

    alignment_head: AlignmentHead
    mutual_fraction: float
    aer: float | None


def choose_alignment_head(
    model: Seq2Seq, tokenizers: Tokenizers, pairs: Sequence[tuple[str, str]], device: torch.device
) -> AlignmentHead:
    """Return the layer and head by which a model aligns best, without gold alignments; the model is unchanged."""
    head_before, training = model.decoder.alignment_head, model.training
    try:
        return rank_alignment_heads(Translator([model], tokenizers, device), pairs)[0].alignment_head
    finally:
        model.decoder.alignment_head = head_before
        model.train(training)


def rank_alignment_heads(
    translator: Translator, pairs: Sequence[tuple[str, str]], gold: Sequence[GoldAlignment] | None = None
) -> list[HeadScore]:
    """Return all alignment heads of the model, the best first, and set the best one in the model.

    Without gold alignments the best head has the most mutual links: two words that attend most to each other.
    """
    decoder = get_single_model(translator).decoder
    heads = [head._replace(shifted=shifted) for head in decoder.alignment_heads() for shifted in (False, True)]
    if not heads:
        raise UserError("this model has a single attention over the source, so there is no alignment head to choose")
    words, mutual = 0, [0] * len(heads)
    links: list[list[set[Link]]] = [[set() for _ in pairs] for _ in heads]
    sizes = [max(map(len, encode_pair(translator, *pair))) + 1 for pair in pairs]
    for rows in split_by_length(sizes, ALL_HEADS_BATCH_TOKENS):
        alignments_of_rows = _align_by_every_head(translator, [pairs[row] for row in rows])
        for row, alignments in zip(rows.tolist(), alignments_of_rows, strict=True):
            words += sum(alignments[0].soft.shape)
            for index, alignment in enumerate(alignments):
                mutual[index] += 2 * count_mutual_links(alignment.soft)
                if gold is not None:
                    links[index][row] = set(alignment.pairs)
    scores = [
        HeadScore(
            head,
            num_linked / max(1, words),
            None if gold is None else compute_gold_alignment_score(links_of_pairs, gold).aer,
        )
        for head, num_linked, links_of_pairs in zip(heads, mutual, links, strict=True)
    ]
    scores.sort(key=lambda score: -score.mutual_fraction if score.aer is None else score.aer)
    decoder.alignment_head = scores[0].alignment_head
    return scores


@torch.inference_mode()
def _align_by_every_head(translator: Translator, pairs: Sequence[tuple[str, str]]) -> list[list[Alignment]]:
    """Return the alignments of each pair by every head, both at a token's own step and at the next one."""
    model, ids = get_single_model(translator), [encode_pair(translator, *pair) for pair in pairs]
    batch, lengths = translator.make_batch([source for source, _ in ids])
    # Padding behind a target does not matter: later positions are not attended.
    target_in, _ = translator.make_batch([[BOS, *target[:-1]] for _, target in ids])
    attentions = [
        to_numpy(attention) for attention in model.decoder.attention_by_head(model.encode(batch, lengths), target_in)
    ]
    alignments = []
    for row, (pair, (source, target)) in enumerate(zip(pairs, ids, strict=True)):
        of_pair = [attention[row, : len(target), : len(source) + 1] for attention in attentions]
        tokenized = translator.tokenize_pair(pair)
        alignments.append(
            [
                align_words(shift(attention), *tokenized)
                for attention in of_pair
                for shift in (np.asarray, shift_to_next_step)
            ]
        )
    return alignments


def count_mutual_links(soft: Floats) -> int:
    """Count the links of target and source words in which each is the other's strongest."""
    if not soft.size:
        return 0
    strongest = soft.argmax(1)
    linked = soft.max(1) > 0
    return int((linked & (soft.argmax(0)[strongest] == np.arange(len(soft)))).sum())
