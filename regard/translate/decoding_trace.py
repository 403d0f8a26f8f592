"""Trace decoding step by step (forced decoding): candidates, attention, context vector and state of each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.errors import UserError
from regard.models import Seq2Seq
from regard.nn import Attended
from regard.plot import DecodingStep
from regard.search import Floats
from regard.special_tokens import BOS, EOS
from regard.translate.translator import Translator

NUM_CANDIDATES = 5


def trace_decoding(translator: Translator, source: str, target: str) -> list[DecodingStep]:
    """Force one model to write `target`; return its attention and next-token candidates at each step."""
    return trace_decoding_of_ids(translator, *encode_pair(translator, source, target))


def encode_pair(translator: Translator, source: str, target: str) -> tuple[list[int], list[int]]:
    """Return the ids of source and target; the target ends in EOS."""
    source_tokenizer, target_tokenizer = translator.tokenizers
    return source_tokenizer.encode(source), [*target_tokenizer.encode(target), EOS]


@torch.inference_mode()
def trace_decoding_of_ids(
    translator: Translator, source_ids: Sequence[int], target_ids: Sequence[int]
) -> list[DecodingStep]:
    """Trace the decoding of target ids, which end in EOS; see `trace_decoding`."""
    model, target_tokens = get_single_model(translator), translator.tokenizers.target
    batch, lengths = translator.make_batch([source_ids])
    state = model.decoder.start(model.encode(batch, lengths))
    steps = []
    for previous, token in zip([BOS, *target_ids], target_ids, strict=False):
        log_probs, state, attended = model.decoder.step(state, torch.tensor([previous], device=batch.device))
        probabilities, top_ids = log_probs[0].exp().topk(min(NUM_CANDIDATES, log_probs.shape[1]))
        candidates = zip(target_tokens.convert_ids_to_tokens(top_ids.tolist()), probabilities.tolist(), strict=True)
        plotted, attentional = model.decoder.plot_state(state), model.decoder.attentional_vector(state)
        steps.append(
            DecodingStep(
                target_tokens.convert_ids_to_tokens([token])[0],
                list(candidates),
                None if attended is None else to_numpy(attended.dense(batch.shape[1])[0, 0]),
                None if attended is None else to_numpy(attended.context[0, 0]),
                None if plotted is None else to_numpy(plotted[0]),
                None if attended is None else _find_attention_window(attended, int(lengths[0])),
                None if attentional is None else to_numpy(attentional[0]),
            )
        )
    return steps


def compute_attention_by_head(translator: Translator, source: str, target: str) -> dict[str, Floats]:
    """Return the cross-attention of each layer and head to the source, by name ("layer 1, head 2")."""
    return compute_attention_by_head_of_ids(translator, *encode_pair(translator, source, target))


@torch.inference_mode()
def compute_attention_by_head_of_ids(
    translator: Translator, source_ids: Sequence[int], target_ids: Sequence[int]
) -> dict[str, Floats]:
    """Return the cross-attention of each layer and head for encoded ids; see `compute_attention_by_head`."""
    model = get_single_model(translator)
    batch, lengths = translator.make_batch([source_ids])
    target_in = torch.tensor([[BOS, *target_ids[:-1]]], device=batch.device)
    attentions = model.decoder.attention_by_head(model.encode(batch, lengths), target_in)
    return {
        f"layer {head.layer + 1}, head {head.head + 1}": to_numpy(attention[0])
        for head, attention in zip(model.decoder.alignment_heads(), attentions, strict=True)
        if head.head is not None
    }


def _find_attention_window(attended: Attended, length: int) -> tuple[int, int] | None:
    """Return the first and last source position of a step's local attention; None for global attention."""
    if attended.positions is None:
        return None
    positions = attended.positions[0, 0].clamp(0, length - 1)
    return int(positions.min()), int(positions.max())


def get_single_model(translator: Translator) -> Seq2Seq:
    """Return the only model of a translator; raise UserError for an ensemble."""
    if len(translator.models) != 1:
        raise UserError(f"only a single model can be inspected, not an ensemble of {len(translator.models)}")
    return translator.models[0]


def to_numpy(tensor: torch.Tensor) -> Floats:
    """Copy a tensor to the CPU as a NumPy array of floats."""
    return tensor.float().cpu().numpy()
