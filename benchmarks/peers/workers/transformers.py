"""Worker of transformers: Marian, a post-norm Transformer as in the paper."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from benchmarks.peers.workers.worker_protocol import Run, answer_requests, make_update_run
from benchmarks.peers.workloads import DROPOUT, LENGTH, SMOOTHING, Workload

PAD, EOS = 0, 3


def build_run(work: Workload) -> Run | None:
    """Return a function that runs the workload once; None if the toolkit has no such model."""
    sizes = work.sizes
    if work.model == "rnn":
        return None
    config = MarianConfig(
        vocab_size=sizes.vocabulary_size,
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
    model: Any = MarianMTModel(config)
    return make_training_run(model.train(), work) if work.task == "train" else make_decoding_run(model.eval(), work)


def make_decoding_run(model: Any, work: Workload) -> Run:
    """Return a decoding run of its `generate`."""
    sources = work.make_sources()
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


def make_training_run(model: Any, work: Workload) -> Run:
    """Return a training run with its trainer's optimizer and PyTorch's loss: its own has no label smoothing."""
    adam = torch.optim.AdamW(model.parameters(), 1e-6, fused=True)
    sources, targets = work.make_sources(), work.make_targets()
    mask = torch.ones_like(sources)

    def loss() -> Any:
        logits = model(
            input_ids=sources, attention_mask=mask, decoder_input_ids=targets[:, :-1], use_cache=False
        ).logits
        return F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), label_smoothing=SMOOTHING)

    return make_update_run(adam, loss)


if __name__ == "__main__":
    answer_requests(build_run)
