"""Inspect a model by forced decoding: its steps, the attention of each head, and the choice of the alignment head.

The alignment head is the layer and head whose attention aligns words best. The measure is the alignment error rate with
gold alignments, or the fraction of mutual links without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.data.readers.text import Link
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import GoldAlignment, compute_alignment_score
from regard.models import Seq2Seq
from regard.models.base import AlignmentHead, Decoder
from regard.models.hypothesis import Floats
from regard.nn import LocalPredictive
from regard.plot.heatmap import DecodingStep
from regard.special_tokens import BOS
from regard.tokenizers.tokenizer import Tokenizers
from regard.translate.backends.base import split_by_length
from regard.translate.translation import Alignment, align_words, shift_to_next_step
from regard.translate.translator import Translator

NUM_CANDIDATES = 5
SINGLE_HEAD_FACTOR = 0.95  # on the mutual links of a single head
ALL_HEADS_BATCH_TOKENS = 1000  # tokens of one side, with padding: the attention of all heads is in memory at once


@torch.inference_mode()
def trace_decoding(translator: Translator, source_ids: Sequence[int], target_ids: Sequence[int]) -> list[DecodingStep]:
    """Force one model to write `target_ids`; return its attention and next-token candidates at each step.

    The target ends in EOS; see `Translator.encode_pair`.
    """
    model, target_tokens = _get_single_model(translator), translator.tokenizers.target
    batch, lengths = translator.make_batch([source_ids])
    state = model.decoder.start(model.encode(batch, lengths))
    steps = []
    for previous, token in zip([BOS, *target_ids], target_ids, strict=False):
        before = state
        log_probs, state, attended = model.decoder.step(state, torch.tensor([previous], device=batch.device))
        probabilities, top_ids = log_probs[0].exp().topk(min(NUM_CANDIDATES, log_probs.shape[1]))
        candidates = zip(target_tokens.convert_ids_to_tokens(top_ids.tolist()), probabilities.tolist(), strict=True)
        # Source positions of local attention; global attention has none.
        positions = None if attended is None else attended.positions
        window = None if positions is None else positions[0, 0].clamp(0, int(lengths[0]) - 1)
        plotted, attentional = model.decoder.plot_state(state), model.decoder.attentional_vector(state)
        steps.append(
            DecodingStep(
                target_tokens.convert_ids_to_tokens([token])[0],
                list(candidates),
                None if attended is None else _to_numpy(attended.dense(batch.shape[1])[0, 0]),
                None if attended is None else _to_numpy(attended.context[0, 0]),
                None if plotted is None else _to_numpy(plotted[0]),
                None if window is None else (int(window.min()), int(window.max())),
                None if attentional is None else _to_numpy(attentional[0]),
                _compute_gaussian(model.decoder, before, state),
            )
        )
    return steps


def _compute_gaussian(decoder: Decoder, before: Any, after: Any) -> tuple[float, float] | None:
    """Return centre and standard deviation of a step's local-p attention from the states before and after the step."""
    alignment = getattr(getattr(decoder, "attention", None), "alignment", None)
    query = decoder.plot_state(after if decoder.computation_order[0] == "h_t" else before)
    if not isinstance(alignment, LocalPredictive) or query is None:
        return None
    return alignment.centre(query[:, None], before.memory.mask).item(), alignment.sigma


def compute_attention_by_head(
    translator: Translator, source_ids: Sequence[int], target_ids: Sequence[int]
) -> dict[str, Floats]:
    """Return the cross-attention of each layer and head to the source, by name ("layer 1, head 2").

    The target ends in EOS; see `Translator.encode_pair`.
    """
    attentions = _compute_all_attentions(translator, [(source_ids, target_ids)])
    return {
        f"layer {head.layer + 1}, head {head.head + 1}": attention[0]
        for head, attention in zip(_get_single_model(translator).decoder.alignment_heads(), attentions, strict=True)
        if head.head is not None
    }


@torch.inference_mode()
def _compute_all_attentions(translator: Translator, ids: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Floats]:
    """Return the cross-attention (B, T, S) of every layer and head for source and target ids."""
    model = _get_single_model(translator)
    batch, lengths = translator.make_batch([source for source, _ in ids])
    # `make_batch` appends EOS, which as the last input is beyond the target; positions behind it are not attended.
    target_in, _ = translator.make_batch([[BOS, *target[:-1]] for _, target in ids])
    attentions = model.decoder.attention_by_head(model.encode(batch, lengths), target_in[:, :-1])
    return list(map(_to_numpy, attentions))


class HeadScore(NamedTuple):
    """An alignment head, the fraction of words with mutual links, and the alignment error rate if gold is given."""

    alignment_head: AlignmentHead
    mutual_fraction: float
    aer: float | None

    @property
    def cost(self) -> float:
        """The alignment error rate, or the negative mutual fraction; the lowest cost is best.

        A single head is better than the mean of a layer's heads only if it has clearly more mutual links: a sharp head
        may link words mutually that do not belong together, on which the other heads do not agree.
        """
        factor = 1 if self.alignment_head.head is None else SINGLE_HEAD_FACTOR
        return -self.mutual_fraction * factor if self.aer is None else self.aer


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
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    gold: Sequence[GoldAlignment] | None = None,
    presegmented: bool = False,
) -> list[HeadScore]:
    """Return all alignment heads of the model, the best first, and set the best one in the model.

    Without gold alignments the best head has the most mutual links: two words that attend most to each other. See
    `HeadScore.cost`.
    `presegmented` as in `Translator.align`.
    """
    decoder = _get_single_model(translator).decoder
    heads = [head._replace(shifted=shifted) for head in decoder.alignment_heads() for shifted in (False, True)]
    if not heads:
        raise UserError("this model has a single attention over the source, so there is no alignment head to choose")
    words, mutual = 0, [0] * len(heads)
    links: list[list[set[Link]]] = [[set() for _ in pairs] for _ in heads]
    sizes = [max(map(len, translator.encode_pair(*pair, presegmented))) + 1 for pair in pairs]
    for rows in split_by_length(sizes, ALL_HEADS_BATCH_TOKENS):
        alignments_of_rows = _align_by_every_head(translator, [pairs[row] for row in rows], presegmented)
        for row, alignments in zip(rows.tolist(), alignments_of_rows, strict=True):
            words += sum(alignments[0].soft.shape)
            for index, alignment in enumerate(alignments):
                mutual[index] += 2 * count_mutual_links(alignment.soft)
                links[index][row] = set(alignment.pairs)
    scores = []
    for head, num_linked, links_of_pairs in zip(heads, mutual, links, strict=True):
        aer = None if gold is None else compute_alignment_score(links_of_pairs, gold).aer
        scores.append(HeadScore(head, num_linked / max(1, words), aer))
    scores.sort(key=attrgetter("cost"))
    decoder.alignment_head = scores[0].alignment_head
    return scores


def _align_by_every_head(
    translator: Translator, pairs: Sequence[tuple[str, str]], presegmented: bool
) -> list[list[Alignment]]:
    """Return the alignments of each pair by every head, both at a token's own step and at the next one."""
    ids = [translator.encode_pair(*pair, presegmented) for pair in pairs]
    attentions, has_sink = _compute_all_attentions(translator, ids), translator.has_attention_sink
    alignments = []
    for row, (pair, (source, target)) in enumerate(zip(pairs, ids, strict=True)):
        tokenized = translator.tokenize_pair(pair, presegmented=presegmented)
        of_pair = (attention[row, : len(target), : len(source) + 1] for attention in attentions)
        shifted_or_not = chain.from_iterable((attention, shift_to_next_step(attention)) for attention in of_pair)
        alignments.append([align_words(attention, *tokenized, has_sink) for attention in shifted_or_not])
    return alignments


def count_mutual_links(soft: Floats) -> int:
    """Count the links of target and source words in which each is the other's strongest."""
    if not soft.size:
        return 0
    strongest = soft.argmax(1)
    linked = soft.max(1) > 0
    return int((linked & (soft.argmax(0)[strongest] == np.arange(len(soft)))).sum())


def _get_single_model(translator: Translator) -> Seq2Seq:
    """Return the only model of a translator; raise UserError for an ensemble."""
    if len(translator.models) != 1:
        raise UserError(f"only a single model can be inspected, not an ensemble of {len(translator.models)}")
    return translator.models[0]


def _to_numpy(tensor: torch.Tensor) -> Floats:
    return tensor.float().cpu().numpy()
