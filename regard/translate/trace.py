"""A translation looked at while it is made: each step, and every head."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.errors import UserError
from regard.models import Seq2Seq
from regard.nn import Attended
from regard.plot import Step
from regard.search import Floats
from regard.symbols import BOS, EOS
from regard.translate.translator import Translator

CANDIDATES = 5


def traced(translator: Translator, source: str, target: str) -> list[Step]:
    """The steps in which one model writes a target: what it saw, and what else it might have written."""
    return steps(translator, *spelled(translator, source, target))


def spelled(translator: Translator, source: str, target: str) -> tuple[list[int], list[int]]:
    """The ids of both sides, EOS at the end of the second."""
    own, other = translator.tokenizers
    return own.encode(source), [*other.encode(target), EOS]


@torch.inference_mode()
def steps(translator: Translator, source: Sequence[int], ids: Sequence[int]) -> list[Step]:
    """The same, of ids."""
    model, target_tokens = one_model(translator), translator.tokenizers.target
    batch, lengths = translator.batch([source])
    state = model.decoder.start(model.encode(batch, lengths))
    found = []
    for before, token in zip([BOS, *ids], ids, strict=False):
        log_probs, state, attended = model.decoder.step(state, torch.tensor([before], device=batch.device))
        chances, likely = log_probs[0].exp().topk(min(CANDIDATES, log_probs.shape[1]))
        known = zip(target_tokens.pieces(likely.tolist()), chances.tolist(), strict=True)
        shown, attentional = model.decoder.shown(state), model.decoder.attentional(state)
        found.append(
            Step(
                target_tokens.pieces([token])[0],
                list(known),
                None if attended is None else array(attended.dense(batch.shape[1])[0, 0]),
                None if attended is None else array(attended.context[0, 0]),
                None if shown is None else array(shown[0]),
                None if attended is None else window(attended, int(lengths[0])),
                None if attentional is None else array(attentional[0]),
            )
        )
    return found


def all_heads(translator: Translator, source: str, target: str) -> dict[str, Floats]:
    """The look at the source of every layer and head, by name."""
    return heads(translator, *spelled(translator, source, target))


@torch.inference_mode()
def heads(translator: Translator, source: Sequence[int], ids: Sequence[int]) -> dict[str, Floats]:
    """The same, of ids."""
    model = one_model(translator)
    batch, lengths = translator.batch([source])
    target_in = torch.tensor([[BOS, *ids[:-1]]], device=batch.device)
    looks = model.decoder.looks(model.encode(batch, lengths), target_in)
    return {
        f"layer {viewpoint.layer + 1}, head {viewpoint.head + 1}": array(look[0])
        for viewpoint, look in zip(model.decoder.viewpoints(), looks, strict=True)
        if viewpoint.head is not None
    }


def window(attended: Attended, length: int) -> tuple[int, int] | None:
    """The places of the source that one step looked for, where it did not look for all."""
    if attended.positions is None:
        return None
    places = attended.positions[0, 0].clamp(0, length - 1)
    return int(places.min()), int(places.max())


def one_model(translator: Translator) -> Seq2Seq:
    """The only model of a translator."""
    if len(translator.models) != 1:
        raise UserError(f"one model at a time can be looked into, not {len(translator.models)}")
    return translator.models[0]


def array(tensor: torch.Tensor) -> Floats:
    """Numbers on the host."""
    return tensor.float().cpu().numpy()
