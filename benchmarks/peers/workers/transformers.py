"""transformers: Marian, whose post-norm Transformer is that of the paper."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from ..works import DROPOUT, LENGTH, SMOOTHING, Work
from .line import Run, serve, updating

PAD, EOS = 0, 3


def made(work: Work) -> Run | None:
    """The work."""
    sizes = work.sizes
    if work.model == "rnn":
        return None
    config = MarianConfig(
        vocab_size=sizes.words,
        d_model=sizes.size,
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.feedforward,
        decoder_ffn_dim=sizes.feedforward,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=0.0,
        activation_dropout=0.0,
        max_position_embeddings=512,
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=PAD,
    )
    model = MarianMTModel(config)
    return training(model.train(), work) if work.task == "train" else decoding(model.eval(), work)


def decoding(model: Any, work: Work) -> Run:
    """Its `generate`."""
    sources = work.sources()
    mask = torch.ones_like(sources)

    def run() -> list[int]:
        with torch.inference_mode():
            found = model.generate(
                input_ids=sources,
                attention_mask=mask,
                num_beams=work.beam,
                do_sample=False,
                min_new_tokens=LENGTH,
                max_new_tokens=LENGTH,
            )
        return [len(row) - 1 for row in found]  # the first is where it starts

    return run


def training(model: Any, work: Work) -> Run:
    """Its logits and its trainer's optimizer; the loss is PyTorch's, since its own has no label smoothing."""
    adam = torch.optim.AdamW(model.parameters(), 1e-6, fused=True)
    sources, targets = work.sources(), work.targets()
    mask = torch.ones_like(sources)

    def loss() -> Any:
        logits = model(
            input_ids=sources, attention_mask=mask, decoder_input_ids=targets[:, :-1], use_cache=False
        ).logits
        return F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), label_smoothing=SMOOTHING)

    return updating(adam, loss)


if __name__ == "__main__":
    serve(made)
