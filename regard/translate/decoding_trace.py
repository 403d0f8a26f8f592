"""A translation looked at while it is made: each step, and every head."""

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
    """The steps in which one model writes a target: what it saw, and what else it might have written."""
    return trace_decoding_of_ids(translator, *encode_pair(translator, source, target))


def encode_pair(translator: Translator, source: str, target: str) -> tuple[list[int], list[int]]:
    """The ids of both sides, EOS at the end of the second."""
    own, other = translator.tokenizers
    return own.encode(source), [*other.encode(target), EOS]


@torch.inference_mode()
def trace_decoding_of_ids(
    translator: Translator, source_ids: Sequence[int], target_ids: Sequence[int]
) -> list[DecodingStep]:
    """The same, of ids."""
    model, target_tokens = get_single_model(translator), translator.tokenizers.target
    batch, lengths = translator.make_batch([source_ids])
    state = model.decoder.start(model.encode(batch, lengths))
    found = []
    for before, token in zip([BOS, *target_ids], target_ids, strict=False):
        log_probs, state, attended = model.decoder.step(state, torch.tensor([before], device=batch.device))
        chances, likely = log_probs[0].exp().topk(min(NUM_CANDIDATES, log_probs.shape[1]))
        known = zip(target_tokens.convert_ids_to_tokens(likely.tolist()), chances.tolist(), strict=True)
        shown, attentional = model.decoder.plot_state(state), model.decoder.attentional_vector(state)
        found.append(
            DecodingStep(
                target_tokens.convert_ids_to_tokens([token])[0],
                list(known),
                None if attended is None else to_numpy(attended.dense(batch.shape[1])[0, 0]),
                None if attended is None else to_numpy(attended.context[0, 0]),
                None if shown is None else to_numpy(shown[0]),
                None if attended is None else _find_attention_window(attended, int(lengths[0])),
                None if attentional is None else to_numpy(attentional[0]),
            )
        )
    return found


def compute_attention_by_head(translator: Translator, source: str, target: str) -> dict[str, Floats]:
    """The look at the source of every layer and head, by name."""
    return compute_attention_by_head_of_ids(translator, *encode_pair(translator, source, target))


@torch.inference_mode()
def compute_attention_by_head_of_ids(
    translator: Translator, source_ids: Sequence[int], target_ids: Sequence[int]
) -> dict[str, Floats]:
    """The same, of ids."""
    model = get_single_model(translator)
    batch, lengths = translator.make_batch([source_ids])
    target_in = torch.tensor([[BOS, *target_ids[:-1]]], device=batch.device)
    looks = model.decoder.attention_by_head(model.encode(batch, lengths), target_in)
    return {
        f"layer {viewpoint.layer + 1}, head {viewpoint.head + 1}": to_numpy(look[0])
        for viewpoint, look in zip(model.decoder.alignment_heads(), looks, strict=True)
        if viewpoint.head is not None
    }


def _find_attention_window(attended: Attended, length: int) -> tuple[int, int] | None:
    """The places of the source that one step looked for, where it did not look for all."""
    if attended.positions is None:
        return None
    places = attended.positions[0, 0].clamp(0, length - 1)
    return int(places.min()), int(places.max())


def get_single_model(translator: Translator) -> Seq2Seq:
    """The only model of a translator."""
    if len(translator.models) != 1:
        raise UserError(f"one model at a time can be looked into, not {len(translator.models)}")
    return translator.models[0]


def to_numpy(tensor: torch.Tensor) -> Floats:
    """Numbers on the host."""
    return tensor.float().cpu().numpy()
