"""Small models and batches with which fast paths are compared with the reference implementation, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.models import Seq2Seq, build
from regard.models.base import CrossEntropy
from regard.nn import ElmanCell, GRUCell, LSTMCell
from regard.nn.recurrent import Cell
from regard.special_tokens import PAD

CELLS: dict[str, Callable[[int, int], Cell]] = {
    "elman": ElmanCell,
    "lstm": LSTMCell,
    "gru-torch": lambda inputs, size: GRUCell(inputs, size, "torch"),
    "gru-paper": GRUCell,
}
TARGET_WORDS = 30
TRANSFORMER: dict[str, Any] = {"config": "vaswani2017-base", "size": 24, "layers": 2, "heads": 3}
LUONG: dict[str, Any] = {"config": "luong2015-global", "size": 12, "layers": 2}
DEVICE_SEARCH_MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {**TRANSFORMER, "norm": "pre"},
    "post-norm": {**TRANSFORMER, "norm": "post", "tie": "none"},
    "learned-positions": {
        **TRANSFORMER, "norm": "pre", "positions": "learned", "max_positions": 9, "align_layer": 1, "align_head": 2
    },
    "no-positions": {**TRANSFORMER, "norm": "post", "positions": "none", "tie": "decoder"},
    "imported": {**TRANSFORMER, "activation": "swish", "scale_embedding": False, "decoder_layers": 1},
    "luong": LUONG,
    "luong-dot": {**LUONG, "score": "dot", "layers": 1},
    "luong-concat": {**LUONG, "score": "concat", "bidirectional": True, "layers": 1},
    "luong-no-input-feeding": {**LUONG, "input_feeding": False},
}  # fmt: skip
assert_all_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)  # of sequences of tensors, too


def randomize(model: nn.Module, std: float) -> None:
    """Draw all weights, large enough for every part of the model to matter and for some words to be likelier."""
    for weight in model.parameters():
        nn.init.normal_(weight, std=std)


def make_device_search_model(options: dict[str, Any], std: float = 0.5, seed: int = 0) -> Seq2Seq:
    """Return a random model in double precision."""
    torch.manual_seed(seed)
    model = build(source_size=20, target_size=TARGET_WORDS, **options).double().eval()
    assert isinstance(model, Seq2Seq)
    randomize(model, std)
    return model


def make_random_transformer(seed: int = 0, std: float = 0.4, **options: Any) -> Seq2Seq:
    """Return a random Transformer of two layers in evaluation mode."""
    torch.manual_seed(seed)
    model = build("vaswani2017-base", 20, TARGET_WORDS, **{"size": 24, "layers": 2, "heads": 3, **options}).eval()
    assert isinstance(model, Seq2Seq)
    randomize(model, std)
    return model


def make_training_transformer(
    norm: str, r_drop: float = 0.0, smoothing: float = 0.1, sizes: tuple[int, int] = (30, 30), **options: Any
) -> Seq2Seq:
    """Return a Transformer in training mode without dropout, so that two passes can be compared."""
    torch.manual_seed(0)
    model = build("vaswani2017-base", *sizes, size=24, layers=2, heads=3, dropout=0.0, norm=norm, **options)
    assert isinstance(model, Seq2Seq)
    model.criterion = CrossEntropy(label_smoothing=smoothing, r_drop=r_drop)
    return model.train()


def use_leaky_relu(model: Any) -> None:
    model.encoder.layers[0].feedforward[1] = nn.LeakyReLU()


def add_bias(model: Any) -> None:
    output = model.decoder.output
    model.decoder.output = nn.Linear(output.in_features, output.out_features)


def add_hook(model: Any) -> None:
    model.decoder.layers[0].register_forward_hook(lambda *_: None)


def make_batch(sources: list[int], targets: list[int], vocabulary: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return random sentences of the given lengths: source, source lengths, target input and target output."""
    torch.manual_seed(1)

    def padded(lengths: list[int]) -> Tensor:
        ids = torch.randint(4, vocabulary, (len(lengths), max(lengths)))
        return ids.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)

    return padded(sources), torch.tensor(sources), padded(targets), padded(targets)


def loss_and_gradients(model: Seq2Seq, loss: Tensor) -> list[Tensor]:
    """Return the loss and the gradients of all weights."""
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]
