"""Worker of JoeyNMT."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_optimizer
from joeynmt.model import build_model
from joeynmt.search import search
from joeynmt.vocabulary import Vocabulary

from benchmarks.peers.workers.worker_protocol import Run, answer_requests, make_update_run
from benchmarks.peers.workloads import DROPOUT, LENGTH, SMOOTHING, ModelSizes, Workload

UNK, PAD, BOS, EOS = range(4)
SPECIALS = {"unk": UNK, "pad": PAD, "bos": BOS, "eos": EOS}


def build_run(work: Workload) -> Run:
    """Return a function that runs the workload once; None if the toolkit has no such model."""
    known = {f"{name}_id": id for name, id in SPECIALS.items()} | {f"{name}_token": f"<{name}>" for name in SPECIALS}
    words = list(map(str, range(len(SPECIALS), work.sizes.vocabulary_size)))
    vocabulary = Vocabulary(words, SimpleNamespace(**known, sep_id=None, sep_token=None, lang_tags=[]))
    configured = make_rnn_config(work.sizes) if work.model == "rnn" else make_transformer_config(work.sizes)
    model = build_model(configured, src_vocab=vocabulary, trg_vocab=vocabulary)
    return make_training_run(model.train(), work) if work.task == "train" else make_decoding_run(model.eval(), work)


def make_rnn_config(sizes: ModelSizes) -> dict[str, Any]:
    """Return the `model` section of the recurrent model."""
    common = {
        "type": "recurrent",
        "rnn_type": "lstm",
        "num_layers": sizes.layers,
        "dropout": 0.0,
        "embeddings": {"embedding_dim": sizes.size, "dropout": 0.0},
    }
    encoder = common | {"hidden_size": sizes.size // 2, "bidirectional": True}
    decoder = common | {
        "hidden_size": sizes.size,
        "attention": "luong",
        "input_feeding": True,
        "init_hidden": "bridge",
        "hidden_dropout": 0.0,
    }
    return {"encoder": encoder, "decoder": decoder}


def make_transformer_config(sizes: ModelSizes) -> dict[str, Any]:
    """Return the `model` section of a Transformer."""
    half = {
        "type": "transformer",
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "hidden_size": sizes.size,
        "ff_size": sizes.feedforward,
        "dropout": DROPOUT,
        "layer_norm": "pre",
        "embeddings": {"embedding_dim": sizes.size, "scale": True, "dropout": DROPOUT},
    }
    return {"encoder": half, "decoder": dict(half), "tied_embeddings": True, "tied_softmax": True}


def make_batch(sources: torch.Tensor, targets: torch.Tensor | None) -> Batch:
    """Return a batch."""
    lengths = torch.full((len(sources),), sources.shape[1])
    rows, device = torch.arange(len(sources)), torch.device("cpu")
    return Batch(sources, lengths, None, targets, None, rows, device, PAD, EOS, is_train=targets is not None)


def make_decoding_run(model: Any, work: Workload) -> Run:
    """Return a decoding run of its search."""
    sources = make_batch(work.make_sources(), None)

    def run() -> list[int]:
        found, _, _ = search(
            model,
            sources,
            max_output_length=LENGTH,
            min_output_length=LENGTH,
            beam_size=work.beam,
            beam_alpha=0.6,
        )
        return [len(row) for row in found]

    return run


def make_training_run(model: Any, work: Workload) -> Run:
    """Return a training run with its loss and its optimizer."""
    smoothing = 0.0 if work.model == "rnn" else SMOOTHING
    model.loss_function = ("crossentropy", smoothing)
    adam = build_optimizer({"optimizer": "adam", "learning_rate": 1e-6}, model.parameters())
    targets = work.make_targets()
    targets[:, -1] = EOS  # by which a batch knows that it is to be shifted
    pairs = make_batch(work.make_sources(), targets)

    def loss() -> Any:
        summed, _, _, _ = model(return_type="loss", **vars(pairs))
        return pairs.normalize(summed, "tokens")

    return make_update_run(adam, loss)


if __name__ == "__main__":
    answer_requests(build_run)
