"""Every key of every translation recipe changes what its comment says.

`make test` checks each model key with one recurrent recipe and one Transformer, and with every recipe for which the
expected effect differs; `make test-slow` checks the other recipes.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.corpora import translation_recipes
from support.training import (
    TINY,
    are_state_dicts_equal,
    corpus_files,
    gradients_of,
    make_examples,
    make_loss_nan,
    make_trainer,
)
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.dataset import Indices, ParallelDataset, Seq2SeqBatch
from regard.data.loader import SamplerPosition
from regard.data.readers.dispatch import read_all_pairs
from regard.data.split import DataSettings
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.models import build
from regard.nn import (
    Concat,
    Dot,
    ElmanCell,
    General,
    Global,
    GRUCell,
    LocalMonotonic,
    LocalPredictive,
    Location,
    LSTMCell,
    hidden_state,
    prefix_mask,
)
from regard.recipes.recipe import SECTIONS, override, read_recipe
from regard.runs import checkpoint
from regard.special_tokens import BOS, PAD, UNK
from regard.tasks.base import Validation
from regard.tasks.translation import TranslationValidator
from regard.tokenizers.segmentation import find_sentencex_version
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.words import WordTokenizer
from regard.training import Trainer, TrainingSettings, train
from regard.training.distributed import choose_device
from regard.training.optimizer import build_optimizer

RECIPES = {name: read_recipe(name) for name in translation_recipes()}
TRANSFORMERS = [name for name, recipe in RECIPES.items() if recipe["model"]["kind"] == "transformer"]
WITHOUT_ATTENTION = ("cho2014", "sutskever2014")
SOURCE = TARGET = 13
SIZE = 8
LENGTHS = torch.tensor([6, 4, 2])
B, S, T = 3, 6, 5
CPU = torch.device("cpu")


# Model keys: small models in double precision, with weights large enough that every change is visible in the output.


def make_initial_model(name: str, changes: Mapping[str, Any] = {}) -> Any:
    """Return a small model of a recipe with its initial weights; `changes` are dotted keys."""
    small: dict[str, Any] = {"model.size": SIZE, "model.layers": 1, "model.dropout": 0.0}
    heads = {"model.heads": 2, "model.feedforward": None} if name in TRANSFORMERS else {}
    torch.manual_seed(7)
    return build(override(RECIPES[name], {**small, **heads, **changes}), SOURCE, TARGET)


def make_model(name: str, changes: Mapping[str, Any] = {}) -> Any:
    """Return a small model in evaluation mode; parameters of equal shapes have equal values in any two models."""
    model = make_initial_model(name, changes).double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return model


def make_source() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(4, SOURCE, (B, S), generator=generator).masked_fill(~prefix_mask(LENGTHS, S), PAD)


def make_batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return source, lengths, target in and target out; the second target is padded."""
    generator = torch.Generator().manual_seed(4)
    out = torch.randint(4, TARGET, (B, T), generator=generator)
    out[1, 3:] = PAD
    before = torch.cat((torch.full((B, 1), BOS), out[:, :-1]), 1)
    return make_source(), LENGTHS, before, out


def target_mask() -> Tensor:
    return make_batch()[3] != PAD


def loss_divisor(model: Any) -> int:
    """Return the number of tokens or sentences by which the summed loss is divided."""
    return int(target_mask().sum()) if model.criterion.per == "token" else B


def run_decoder(model: Any) -> Any:
    source, lengths, target_in, _ = make_batch()
    return model.decoder(model.encode(source, lengths), target_in)


def attention_weights(model: Any) -> Tensor:
    """Return attention weights (B, T, S); for hard attention the distribution that positions are sampled from."""
    attended = run_decoder(model).attended
    chances = attended.probabilities
    weights: Tensor = (attended if chances is None else attended._replace(weights=chances)).dense(S)
    return weights


def recurrent_encoder(model: Any) -> Any:
    """Return the recurrent encoder, also where it is wrapped to split its outputs into keys and values."""
    return getattr(model.encoder, "encoder", model.encoder)


def find_output_layer(model: Any) -> nn.Linear:
    (layer,) = [m for m in model.decoder.modules() if isinstance(m, nn.Linear) and m.out_features == TARGET]
    return layer


def layer_stacks(model: Any) -> tuple[Any, Any]:
    """Return the layers of encoder and decoder."""
    if hasattr(model.decoder, "layers"):
        return model.encoder.layers, model.decoder.layers
    return recurrent_encoder(model).recurrent.forwards, model.decoder.recurrent.forwards


def embeddings(model: Any) -> tuple[nn.Embedding, nn.Embedding]:
    source, target = recurrent_encoder(model).embedding, model.decoder.embedding
    return getattr(source, "words", source), getattr(target, "words", target)


def assert_close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def check_model_kind(name: str) -> None:
    def family(value: str) -> tuple[type, ...]:
        model = build({"model": {"kind": value, "size": SIZE}}, SOURCE, TARGET)
        return type(model), type(model.encoder), type(model.decoder)

    own, kinds = make_initial_model(name), {recipe["model"]["kind"] for recipe in RECIPES.values()}
    assert family(RECIPES[name]["model"]["kind"]) == (type(own), type(own.encoder), type(own.decoder))
    assert len({family(value) for value in kinds}) == len(kinds), "each kind is another model"
    with pytest.raises(UserError, match=r"unknown model\.kind 'luog'; did you mean 'luong'"):
        make_initial_model(name, {"model.kind": "luog"})


def check_model_size(name: str) -> None:
    for value in (8, 12):
        model = make_initial_model(name, {"model.size": value})
        assert [words.embedding_dim for words in embeddings(model)] == [value, value], "the embedding size follows"
        if name in TRANSFORMERS:
            assert model.encode(*make_batch()[:2]).memory.keys.shape[-1] == value
            assert find_output_layer(model).in_features == value
        else:
            directions = 2 if RECIPES[name]["model"]["bidirectional"] else 1
            assert recurrent_encoder(model).recurrent.output_size == value * directions
            assert model.decoder.recurrent.output_size == value


def check_model_embedding(name: str) -> None:
    for value, width in ((5, 5), (None, SIZE)):
        model = make_initial_model(name, {"model.embedding": value})
        assert [words.embedding_dim for words in embeddings(model)] == [width, width]


def check_model_layers(name: str) -> None:
    for value in (1, 3):
        assert [len(stack) for stack in layer_stacks(make_initial_model(name, {"model.layers": value}))] == [
            value,
            value,
        ]


def check_model_dropout(name: str) -> None:
    source, lengths, target_in, _ = make_batch()
    hard = {"model.soft_share": 1.0} if name == "xu2015-hard" else {}
    for value in (0.0, 0.5):
        model = make_model(name, {"model.dropout": value, "model.layers": 2, **hard})
        given: dict[str, list[Tensor]] = {}
        for path, module in model.named_modules():
            if isinstance(module, nn.Dropout):
                assert module.p == value
                module.register_forward_hook(partial(record_output, given, path))
        assert torch.equal(*(model(source, lengths, target_in) for _ in range(2))), "no dropout at inference"
        given.clear()
        read: list[Tensor] = []
        find_output_layer(model).register_forward_pre_hook(lambda layer, inputs, read=read: read.append(inputs[0]))
        model.train()
        first, second = (model(source, lengths, target_in) for _ in range(2))
        assert torch.equal(first, second) == (value == 0.0)
        assert set(given) == active_dropout_modules(name, model)
        behind = any(read[0] is out for outs in given.values() for out in outs)
        assert behind == (name not in TRANSFORMERS and not name.startswith("luong2015")), (
            "dropout before the output layer"
        )
        if name not in TRANSFORMERS:
            seen = [out for path, outs in given.items() if path.endswith("encoder.dropout") for out in outs[:2]]
            assert seen[1].shape[-1] == recurrent_encoder(model).recurrent.output_size, (
                "dropout of embeddings, then of outputs"
            )
        if name not in TRANSFORMERS:  # without dropout between layers, the recurrent connections have none
            for module in (recurrent_encoder(model).dropout, recurrent_encoder(model).recurrent.dropout):
                module.p = 0.0
            assert torch.equal(*(hidden_state(model.encode(source, lengths).state[-1]) for _ in range(2)))


def record_output(given: dict[str, list[Tensor]], path: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
    given.setdefault(path, []).append(output)


def active_dropout_modules(name: str, model: Any) -> set[str]:
    """Return the names of the dropout modules that a forward pass uses."""
    if name not in TRANSFORMERS:
        side = "encoder.encoder" if name == "mino2017" else "encoder"
        modules = {f"{side}.dropout", f"{side}.recurrent.dropout", "decoder.dropout", "decoder.recurrent.dropout"}
        deep = hasattr(getattr(model.decoder, "output", None), "dropout")
        return modules | ({"decoder.output.dropout"} if deep else set())
    around = {
        f"{side}.layers.{layer}.around_{part}.dropout"
        for side, parts in (
            ("encoder", ("attention", "feedforward")),
            ("decoder", ("attention", "cross_attention", "feedforward")),
        )
        for layer in range(2)
        for part in parts
    }
    return around | {"encoder.embedding.dropout", "decoder.embedding.dropout"}


def check_model_residual(name: str) -> None:
    for value in (False, True):
        model = make_model(name, {"model.residual": value, "model.layers": 2})
        for stack in (recurrent_encoder(model).recurrent, model.decoder.recurrent):
            x = torch.randn(B, S, stack.forwards[0].input_size, dtype=torch.float64)
            below, _ = stack._run_layer(0, x, LENGTHS, None)
            above, _ = stack._run_layer(1, below, LENGTHS, None)
            assert_close(stack(x, LENGTHS)[0], above + below if value else above)


CELLS: dict[str, tuple[type, int]] = {"gru": (GRUCell, 3), "lstm": (LSTMCell, 4), "elman": (ElmanCell, 1)}


def check_model_cell(name: str) -> None:
    for value, (kind, gates) in CELLS.items():
        for stack in layer_stacks(make_initial_model(name, {"model.cell": value})):
            assert stack[0].weight_hh.shape == (gates * SIZE, SIZE)
            assert type(stack[0]) is kind
    assert GRUCell(1, 1).form == "paper", "the reset gate is applied before the product"


def changed_keys(model: Any, changed: int) -> list[bool]:
    """Return for each source position whether its key changes with the token at position `changed`."""
    source, lengths = make_batch()[:2]
    other = source.clone()
    other[0, changed] = (source[0, changed] - 4 + 1) % (SOURCE - 4) + 4
    before, after = (model.encode(text, lengths).memory.keys[0] for text in (source, other))
    return [bool((left != right).any()) for left, right in zip(before, after, strict=True)]


def check_model_bidirectional(name: str) -> None:
    for value, seen in ((False, [False, False, True, True, True, True]), (True, [True] * S)):
        assert changed_keys(make_model(name, {"model.bidirectional": value, "model.reverse": False}), 2) == seen


def check_model_reverse(name: str) -> None:
    forwards, backwards = [False, False, True, True, True, True], [True, True, True, False, False, False]
    for value, seen in ((False, forwards), (True, backwards)):
        assert changed_keys(make_model(name, {"model.bidirectional": False, "model.reverse": value}), 2) == seen


def equal_width_overrides(name: str) -> dict[str, Any]:
    """Return overrides that make keys as wide as queries, which a dot product needs."""
    if "key_value" in RECIPES[name]["model"]:
        return {"model.key_value": "separate"}
    return {"model.bidirectional": False}


def check_model_score(name: str) -> None:
    for value, kind in {"dot": Dot, "general": General, "concat": Concat, "location": Location}.items():
        model = make_initial_model(name, {"model.score": value, **equal_width_overrides(name)})
        assert type(model.decoder.attention.score) is kind
        assert run_decoder(model).attended.dense(S).shape == (B, T, S)


def check_model_alignment(name: str) -> None:
    for value, kind in {"global": Global, "local-m": LocalMonotonic, "local-p": LocalPredictive}.items():
        model = make_model(name, {"model.alignment": value, "model.window": 1})
        assert type(model.decoder.attention.alignment) is kind
        seen = attention_weights(model)[0] > 0
        if value == "global":
            assert seen.all()
        elif value == "local-m":
            along = [[abs(s - t) <= 1 for s in range(S)] for t in range(T)]
            assert seen.tolist() == along
        else:
            assert seen.sum(1).max() <= 3


def check_model_window(name: str) -> None:
    for where in ("local-m", "local-p"):
        for value in (1, 2):
            model = make_model(name, {"model.alignment": where, "model.window": value})
            positions = run_decoder(model).attended.positions
            assert positions.shape == (B, T, 2 * value + 1)
            assert (positions[..., -1] - positions[..., 0] == 2 * value).all()
            if where == "local-m":
                assert (positions[0, :, value] == torch.arange(T)).all(), "the window is centred on the target position"


def check_model_coverage(name: str) -> None:
    source, lengths, target_in, _ = make_batch()
    for value in ("none", "linguistic", "neural"):
        model = make_model(name, {"model.coverage": value})
        covering = model.decoder.attention.coverage
        before = attention_weights(model)
        if value == "none":
            assert covering is None
            assert model.decoder.start(model.encode(source, lengths)).memory.coverage is None
            continue
        with torch.no_grad():
            covering.weight.mul_(-3.0)
        after = attention_weights(model)
        assert_close(after[:, 0], before[:, 0])
        assert not torch.allclose(after[:, 1:], before[:, 1:]), "coverage enters the score from the second step on"
    state = model.decoder.start(model.encode(source, lengths))
    assert isinstance(covering.cell, GRUCell)
    assert not state.memory.coverage.amount.any()
    _, state, _ = model.decoder.step(state, target_in[:, 0])
    assert state.memory.coverage.amount.any()


def check_model_coverage_size(name: str) -> None:
    for value in (1, 4):
        model = make_model(name, {"model.coverage": "neural", "model.coverage_size": value})
        covered = model.decoder.start(model.encode(*make_batch()[:2])).memory.coverage
        assert covered.amount.shape == (B, S, value)


def check_model_fertility(name: str) -> None:
    amounts = []
    for value in (1.0, 4.0):
        model = make_model(name, {"model.coverage": "linguistic", "model.fertility": value})
        state = model.decoder.start(model.encode(*make_batch()[:2]))
        assert (state.memory.coverage.word_features <= value).all(), "fertility is bounded"
        assert (state.memory.coverage.word_features > 0).all()
        _, state, _ = model.decoder.step(state, make_batch()[2][:, 0])
        amounts.append(state.memory.coverage.amount)
    assert_close(amounts[0], 4 * amounts[1])


def check_model_max_source(name: str) -> None:
    for value in (3, 5):
        model = make_model(name, {"model.score": "location", "model.max_source": value})
        assert len(model.decoder.attention.score.weight) == value
        assert ((attention_weights(model)[0] > 0).any(0)).tolist() == [position < value for position in range(S)]


def check_model_tie(name: str) -> None:
    if name in TRANSFORMERS:
        tied = {"all": (True, True), "decoder": (False, True), "none": (False, False)}
        for value, (sides, output) in tied.items():
            model = make_initial_model(name, {"model.tie": value})
            source, target = embeddings(model)
            assert (source.weight is target.weight, target.weight is find_output_layer(model).weight) == (sides, output)
        apart = make_initial_model(name, {"model.tie": "all", "text.shared": False})
        assert embeddings(apart)[0].weight is not embeddings(apart)[1].weight
        return
    fits = {"model.maxout": SIZE} if "maxout" in RECIPES[name]["model"] else {}
    for one in (False, True):
        model = make_initial_model(name, {"model.tie": one, **fits})
        assert (find_output_layer(model).weight is embeddings(model)[1].weight) == one
    if not name.startswith("xu2015"):  # its output layer reads vectors of the embedding size
        with pytest.raises(UserError, match="make the two equal"):
            make_initial_model(name, {"model.tie": True, "model.embedding": 5, **fits})


def check_model_initialisation(name: str) -> None:
    reach = {"luong": 0.1, "sutskever": 0.08}.get(RECIPES[name]["model"]["kind"])
    for value in ("paper", "torch"):
        model = make_initial_model(name, {"model.initialisation": value})
        if reach is not None:
            largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
            assert (0.9 * reach < largest <= 1.001 * reach) == (value == "paper")
            continue
        gate = model.decoder.recurrent.forwards[0].weight_hh[:SIZE]
        assert torch.allclose(gate @ gate.T, torch.eye(SIZE), atol=1e-5) == (value == "paper")
        assert (not model.decoder.recurrent.forwards[0].bias_hh.any()) == (value == "paper")


def check_model_attention(name: str) -> None:
    for value, width in ((5, 5), (None, SIZE)):
        assert make_initial_model(name, {"model.attention": value}).decoder.attention.score.v.shape == (width,)


def check_model_maxout(name: str) -> None:
    for value, width in ((5, 5), (None, SIZE // 2)):
        output = make_initial_model(name, {"model.maxout": value}).decoder.output
        assert (output.W_o.in_features, output.U_o.out_features) == (width, 2 * width)


def check_model_readout(name: str) -> None:
    """Only the state after a step depends on the weights of the decoder's cell."""
    for value in ("previous", "current"):
        model = make_model(name, {"model.readout": value})
        before = run_decoder(model).logits[:, 0].clone()
        with torch.no_grad():
            model.decoder.recurrent.forwards[0].weight_ih.mul_(-1.0)
        assert torch.equal(run_decoder(model).logits[:, 0], before) == (value == "previous")


def check_model_heads(name: str) -> None:
    for value in (1, 4):
        model = make_initial_model(name, {"model.heads": value})
        found: list[Tensor] = []
        model.decoder.layers[0].register_forward_hook(lambda m, given, out, found=found: found.append(out[2].weights))
        run_decoder(model)
        assert found[0].shape == (B, value, T, S)
        assert model.encoder.layers[0].attention.heads == value
    with pytest.raises(UserError, match="3 heads, size 8"):
        make_initial_model(name, {"model.heads": 3})


def check_model_feedforward(name: str) -> None:
    for value, width in ((5, 5), (None, 4 * SIZE)):
        for stack in layer_stacks(make_initial_model(name, {"model.feedforward": value})):
            assert stack[0].feedforward[0].out_features == width


def check_model_decoder_layers(name: str) -> None:
    for value, expected in ((3, [2, 3]), (None, [2, 2])):
        stacks = layer_stacks(make_initial_model(name, {"model.layers": 2, "model.decoder_layers": value}))
        assert [len(stack) for stack in stacks] == expected


def check_model_activation(name: str) -> None:
    x = torch.linspace(-2, 2, 9)
    functions: dict[str, Callable[[Tensor], Tensor]]
    functions = {"relu": torch.relu, "swish": lambda x: x * x.sigmoid(), "gelu": F.gelu}
    for value, function in functions.items():
        for stack in layer_stacks(make_initial_model(name, {"model.activation": value})):
            torch.testing.assert_close(stack[0].feedforward[1](x), function(x))


def check_model_scale_embedding(name: str) -> None:
    source = torch.tensor([[4, 5]])
    scaled, plain = (
        make_model(name, {"model.scale_embedding": value, "model.positions": "none"}).encoder.embedding
        for value in (True, False)
    )
    torch.testing.assert_close(plain(source), plain.words(source))
    torch.testing.assert_close(scaled(source), scaled.words(source) * math.sqrt(SIZE))


def check_model_output_bias(name: str) -> None:
    for value in (True, False):
        assert (find_output_layer(make_initial_model(name, {"model.output_bias": value})).bias is not None) == value


def check_model_norm(name: str) -> None:
    x, mask = torch.randn(B, S, SIZE, dtype=torch.float64), prefix_mask(LENGTHS, S)
    for value in ("post", "pre"):
        layer = make_model(name, {"model.norm": value}).encoder.layers[0]
        first, second = layer.around_attention.norm, layer.around_feedforward.norm

        def attend(y: Tensor, layer: Any = layer) -> Tensor:
            projected = layer.attention.project(y, y)
            context: Tensor = layer.attention.attend_projected(y, projected, mask).context
            return context

        if value == "post":
            y = first(x + attend(x))
            expected = second(y + layer.feedforward(y))
        else:
            y = x + attend(first(x))
            expected = y + layer.feedforward(second(y))
        assert_close(layer(x, mask), expected)


def check_model_positions(name: str) -> None:
    """Reversing a source reverses the encoder output only without position encodings."""
    source = torch.tensor([[4, 5, 6, 7]])
    for value, blind in (("sinusoidal", False), ("learned", False), ("none", True)):
        encoder = make_model(name, {"model.positions": value}).encoder
        read, turned = (encoder(ids, torch.tensor([4])).memory.keys[0] for ids in (source, source.flip(1)))
        assert torch.allclose(read.flip(0), turned) == blind, value


def check_model_max_positions(name: str) -> None:
    """Tokens after the last learned position share its embedding."""
    source = torch.tensor([[4, 5, 5, 5]])
    for known, alike in ((2, True), (4, False)):
        embedded = make_model(name, {"model.positions": "learned", "model.max_positions": known}).encoder.embedding(
            source
        )[0]
        assert torch.equal(embedded[1], embedded[3]) == alike
    with pytest.raises(UserError, match="max_positions"):
        make_initial_model(name, {"model.max_positions": 0})


def run_decoder_step(name: str, changes: Mapping[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """Return the alignment of a step (B, S) and the attention of all heads of each layer (B, heads, S)."""
    model = make_model(name, {"model.layers": 3, **changes})
    found: list[Tensor] = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda m, given, out: found.append(out[2].weights[:, :, 0]))
    _, _, attended = model.decoder.step(model.decoder.start(model.encode(*make_batch()[:2])), make_batch()[2][:, 0])
    return attended.weights[:, 0], found


def check_model_align_layer(name: str) -> None:
    for value, index in ((1, 0), (2, 1), (None, 2)):
        given, found = run_decoder_step(name, {"model.align_layer": value})
        assert_close(given, found[index].mean(1))
        assert not any(torch.allclose(given, other.mean(1)) for number, other in enumerate(found) if number != index)


def check_model_align_head(name: str) -> None:
    for value in (1, 2, None):
        given, found = run_decoder_step(name, {"model.align_head": value})
        assert_close(given, found[-1].mean(1) if value is None else found[-1][:, value - 1])


def check_model_align_after(name: str) -> None:
    for value in (False, True):
        assert make_model(name, {"model.align_after": value}).decoder.alignment_head.shifted == value


def check_model_input_feeding(name: str) -> None:
    for value in (True, False):
        model = make_model(name, {"model.input_feeding": value})
        state = model.decoder.start(model.encode(*make_batch()[:2]))
        other = state._replace(attentional_vector=torch.ones_like(state.attentional_vector))
        after, fed_other = (model.decoder.step(each, make_batch()[2][:, 0])[1] for each in (state, other))
        same = torch.equal(hidden_state(after.recurrent[0]), hidden_state(fed_other.recurrent[0]))
        assert same != value


def check_model_key_value(name: str) -> None:
    for value, width in (("split", SIZE // 2), ("separate", SIZE)):
        model = make_model(name, {"model.key_value": value})
        memory = model.encode(*make_batch()[:2]).memory
        assert (memory.keys.shape[-1], memory.values.shape[-1]) == (width, width)
        assert model.encoder.project.out_features == 2 * width
        assert not torch.equal(memory.keys, memory.values)


def check_model_gate(name: str) -> None:
    """A closed gate hides the values."""
    for value in (True, False):
        model = make_model(name, {"model.gate": value})
        if value:
            assert model.decoder.gate.weight.shape == (1, SIZE)
            nn.init.zeros_(model.decoder.gate.weight)
            nn.init.constant_(model.decoder.gate.bias, -800.0)
        state = model.decoder.start(model.encode(*make_batch()[:2]))
        other = state._replace(memory=state.memory._replace(values=torch.ones_like(state.memory.values)))
        found, with_other = (model.decoder.step(each, make_batch()[2][:, 0])[0] for each in (state, other))
        assert torch.allclose(found, with_other) == value


def hard_attention_loss(name: str, changes: Mapping[str, Any], seed: int = 0) -> tuple[float, Any]:
    """Return the training loss of hard attention and the model after the backward pass."""
    model = make_model(name, changes).train()
    torch.manual_seed(seed)
    loss = model.loss(*make_batch())
    loss.backward()
    return loss.item(), model


def score_gradient(model: Any) -> Tensor:
    gradient: Tensor = model.decoder.attention.score.v.grad
    return gradient


def check_model_estimator(name: str) -> None:
    hard = {"model.soft_share": 0.0}
    for value in ("reinforce", "soft-baseline", "marginal"):
        drawn = [hard_attention_loss(name, {**hard, "model.estimator": value}, seed) for seed in (1, 2, 3)]
        assert (len({loss for loss, _ in drawn}) == 1) == (value == "marginal"), "marginal is exact and samples nothing"
        assert bool(drawn[0][1].baseline) == (value == "reinforce"), "only reinforce updates a baseline"


def check_model_decode(name: str) -> None:
    for value in ("argmax", "marginal"):
        model = make_model(name, {"model.decode": value})
        log_probs, _, attended = model.decoder.step(
            model.decoder.start(model.encode(*make_batch()[:2])), make_batch()[2][:, 0]
        )
        likeliest = F.one_hot(attended.probabilities.argmax(-1), S).double()
        assert_close(attended.weights, likeliest if value == "argmax" else attended.probabilities)
        assert_close(log_probs.exp().sum(-1), torch.ones(B, dtype=torch.float64))


def check_model_soft_share(name: str) -> None:
    many = (make_source()[:1].expand(400, -1), LENGTHS[:1].expand(400))
    for value in (0.0, 0.25, 1.0):
        model = make_model(name, {"model.soft_share": value}).train()
        torch.manual_seed(0)
        state = model.decoder.start(model.encode(*many))
        weights = model.decoder.attend(state).weights[:, 0]
        drawn = (weights.max(-1).values == 1.0).double().mean().item()
        assert drawn == pytest.approx(1 - value, abs=0.05 if 0 < value < 1 else 0.0)


def check_model_reward(name: str) -> None:
    """A sampled position passes a gradient to its distribution only through the reward."""
    fixed = {"model.soft_share": 0.0, "model.entropy": 0.0}
    for value in ("reinforce", "soft-baseline"):
        found = [
            score_gradient(hard_attention_loss(name, {**fixed, "model.estimator": value, "model.reward": weight})[1])
            for weight in (0.0, 0.1, 0.3)
        ]
        assert not found[0].any()
        assert found[1].any()
        assert_close(found[2], 3 * found[1])


def check_model_entropy(name: str) -> None:
    fixed = {"model.soft_share": 0.0, "model.reward": 0.0}
    for value in ("reinforce", "soft-baseline"):
        (plain, model), (rewarded, _) = (
            hard_attention_loss(name, {**fixed, "model.estimator": value, "model.entropy": weight})
            for weight in (0.0, 0.3)
        )
        torch.manual_seed(0)
        p = run_decoder(model).attended.probabilities
        spread = -torch.xlogy(p, p).sum(-1)[target_mask()].sum().item() / loss_divisor(model)
        assert plain - rewarded == pytest.approx(0.3 * spread, rel=1e-9)


def check_model_doubly_stochastic(name: str) -> None:
    losses = [
        make_model(name, {"model.doubly_stochastic": weight}).loss(*make_batch()).item() for weight in (0.0, 1.0, 2.5)
    ]
    weights = attention_weights(make_model(name)) * target_mask()[..., None]
    overlooked = (((1 - weights.sum(1)) ** 2) * prefix_mask(LENGTHS, S)).sum().item()
    for weight, loss in zip((1.0, 2.5), losses[1:], strict=True):
        assert loss - losses[0] == pytest.approx(weight * overlooked / loss_divisor(make_model(name)), rel=1e-9)


# Loss keys.


def check_loss_label_smoothing(name: str) -> None:
    plain, smooth = (make_model(name, {"loss.label_smoothing": share}) for share in (0.0, 0.3))
    log_probs = run_decoder(plain).logits.log_softmax(-1)
    out = make_batch()[3]
    moved = log_probs.gather(-1, out[..., None])[..., 0] - log_probs.mean(-1)
    expected = 0.3 * moved[target_mask()].sum() / loss_divisor(plain)
    assert_close(smooth.loss(*make_batch()) - plain.loss(*make_batch()), expected)


def check_loss_per(name: str) -> None:
    token, sentence = (make_model(name, {"loss.per": what}).loss(*make_batch()) for what in ("token", "sentence"))
    assert_close(token * int(target_mask().sum()), sentence * B)


def check_loss_guided(name: str) -> None:
    generator = torch.Generator().manual_seed(8)
    guide = torch.rand(B, T, S, generator=generator, dtype=torch.float64)
    guide = (guide * (guide > 0.7)) * prefix_mask(LENGTHS, S)[:, None]
    plain, led = (make_model(name, {"loss.guided": weight}) for weight in (0.0, 0.4))
    if name in WITHOUT_ATTENTION:
        with pytest.raises(UserError, match="a model without attention cannot be guided"):
            led.loss(*make_batch(), guide)
        return
    expected = -0.4 * torch.xlogy(guide, attention_weights(plain).clamp(min=1e-9)).sum() / loss_divisor(plain)
    assert_close(led.loss(*make_batch(), guide) - plain.loss(*make_batch()), expected)


def check_loss_r_drop(name: str) -> None:
    found: dict[float, tuple[float, Tensor]] = {}
    for weight in (0.0, 1.0, 3.0):
        model = make_model(name, {"loss.r_drop": weight, "model.dropout": 0.4}).train()
        logits: list[Tensor] = []
        model.decoder.register_forward_hook(lambda m, given, out, logits=logits: logits.append(out.logits))
        torch.manual_seed(0)
        found[weight] = model.loss(*make_batch()).item(), logits[0]
    assert [len(logits) for _, logits in found.values()] == [B, 2 * B, 2 * B], "R-drop runs two forward passes"
    p, q = found[1.0][1].log_softmax(-1).chunk(2)
    both = F.kl_div(p, q, reduction="none", log_target=True) + F.kl_div(q, p, reduction="none", log_target=True)
    apart = both.sum(-1)[target_mask()].sum().item()
    assert apart > 0
    assert found[3.0][0] - found[1.0][0] == pytest.approx((3 - 1) / 4 * apart / loss_divisor(model), rel=1e-5)


MODEL_CHECKS: dict[str, Callable[[str], None]] = {
    "model.kind": check_model_kind,
    "model.size": check_model_size,
    "model.embedding": check_model_embedding,
    "model.layers": check_model_layers,
    "model.dropout": check_model_dropout,
    "model.residual": check_model_residual,
    "model.cell": check_model_cell,
    "model.bidirectional": check_model_bidirectional,
    "model.reverse": check_model_reverse,
    "model.score": check_model_score,
    "model.alignment": check_model_alignment,
    "model.window": check_model_window,
    "model.coverage": check_model_coverage,
    "model.coverage_size": check_model_coverage_size,
    "model.fertility": check_model_fertility,
    "model.max_source": check_model_max_source,
    "model.tie": check_model_tie,
    "model.initialisation": check_model_initialisation,
    "model.attention": check_model_attention,
    "model.maxout": check_model_maxout,
    "model.readout": check_model_readout,
    "model.heads": check_model_heads,
    "model.feedforward": check_model_feedforward,
    "model.decoder_layers": check_model_decoder_layers,
    "model.activation": check_model_activation,
    "model.scale_embedding": check_model_scale_embedding,
    "model.output_bias": check_model_output_bias,
    "model.norm": check_model_norm,
    "model.positions": check_model_positions,
    "model.max_positions": check_model_max_positions,
    "model.align_layer": check_model_align_layer,
    "model.align_head": check_model_align_head,
    "model.align_after": check_model_align_after,
    "model.input_feeding": check_model_input_feeding,
    "model.key_value": check_model_key_value,
    "model.gate": check_model_gate,
    "model.estimator": check_model_estimator,
    "model.decode": check_model_decode,
    "model.soft_share": check_model_soft_share,
    "model.reward": check_model_reward,
    "model.entropy": check_model_entropy,
    "model.doubly_stochastic": check_model_doubly_stochastic,
    "loss.label_smoothing": check_loss_label_smoothing,
    "loss.per": check_loss_per,
    "loss.guided": check_loss_guided,
    "loss.r_drop": check_loss_r_drop,
}


# Text, data and training keys: the trainer that `train` builds, and the files that training writes.


class TrainerFactory:
    """Builds trainers of a corpus in new folders."""

    def __init__(self, corpus: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.corpus = corpus
        self.folder = folder
        self.patch = patch
        self.made = 0

    def new_folder(self) -> Path:
        self.made += 1
        folder = self.folder / str(self.made)
        folder.mkdir()
        return folder

    def build(
        self,
        changes: Mapping[str, Any] = {},
        data: Sequence[Path] | None = None,
        recipe: str = "bahdanau2015",
    ) -> Any:
        """Return the trainer that `train` builds from a recipe and files, before its first update."""
        caught: list[Trainer] = []
        with self.patch.context() as patch:
            patch.setattr(Trainer, "fit", lambda trainer: caught.append(trainer))
            named = {} if "data.train" in changes else {"data": data or corpus_files(self.corpus, "train")}
            train(recipe, named.get("data"), self.new_folder() / "run", **{**TINY, "model.size": 8, **changes})
        return caught[0]

    def make(self, bleus: list[float] | None = None, **settings: Any) -> Any:
        """Return a trainer of a copy task that is validated by the given BLEU scores."""
        return make_trainer(self.new_folder(), bleus, **settings)

    def make_order(self, **settings: Any) -> Any:
        """Return the batch order of a trainer with 400 examples."""
        trainer = self.make()
        chosen = TrainingSettings(**{"batch_tokens": 40, **settings})
        return Trainer(trainer.model, make_examples(400), trainer.validate, chosen, trainer.run, CPU).sampler

    def build_tokenizers(self, **text: Any) -> Any:
        """Return the tokenizers of a recipe with these keys in its `text` section."""
        return self.build({f"text.{key}": value for key, value in text.items()}).validate.tokenizers

    def read_lines(self, split: str, side: str) -> list[str]:
        return (self.corpus / f"{split}.{side}").read_text(encoding="utf-8").splitlines()


def check_text_kind(factory: TrainerFactory) -> None:
    line = "The children"
    for value in ("bpe", "unigram", "word", "char"):
        target, source = factory.build_tokenizers(kind=value, vocabulary=400, shared=True)
        written = source.convert_ids_to_tokens(range(source.vocab_size))
        assert isinstance(source, WordTokenizer if value == "word" else SentencePieceTokenizer)
        assert target is source
        if value == "word":
            assert source.convert_ids_to_tokens(source.encode(line)) == line.split()
            assert source.encode("Zyzzyva") == [UNK], "an unknown word"
        elif value == "char":
            assert {len(piece) for piece in written[4:] if not piece.startswith("<0x")} == {1}
        else:
            scores = [source.processor.get_score(id) for id in range(source.vocab_size)]
            ranks = all(score == int(score) for score in scores)  # merges have a rank, unigram pieces a likelihood
            assert ranks == (value == "bpe")
            assert max(map(len, written[4:])) > 1


def check_text_vectors(factory: TrainerFactory) -> None:
    path = factory.new_folder() / "vectors.txt"
    path.write_text("the " + " ".join(["0.5"] * 8) + "\n", encoding="utf-8")
    for value in (str(path), None):
        trainer = factory.build({"text.vectors": value})
        id = trainer.validate.tokenizers.source.encode("the")[0]
        assert (trainer.model.encoder.embedding.weight[id] == 0.5).all() == (value is not None)


def check_text_tune_vectors(factory: TrainerFactory) -> None:
    path = factory.new_folder() / "vectors.txt"
    path.write_text("the " + " ".join(["0.5"] * 8) + "\n", encoding="utf-8")
    for value in (True, False):
        trainer = factory.build({"text.vectors": str(path), "text.tune_vectors": value})
        before = trainer.model.encoder.embedding.weight.detach().clone()
        trainer.train_step(next(trainer.load_update_batches()))
        assert torch.equal(before, trainer.model.encoder.embedding.weight) != value


def check_text_vocabulary(factory: TrainerFactory) -> None:
    for value in (50, 90):
        for tokenizer in factory.build_tokenizers(kind="word", shared=False, vocabulary=value):
            assert tokenizer.vocab_size == value
    for tokenizer in factory.build_tokenizers(kind="bpe", shared=True, vocabulary=330):
        assert tokenizer.vocab_size <= 330


def check_text_shared(factory: TrainerFactory) -> None:
    for value in (True, False):
        source, target = factory.build_tokenizers(kind="word", shared=value)
        assert (source is target) == value
        assert ("Kinder" in source.vocabulary) == value
        found = {path.name for path in (factory.folder / str(factory.made) / "run" / "tokenizer").iterdir()}
        assert found == ({"shared.vocab"} if value else {"source.vocab", "target.vocab"})


def check_text_byte_fallback(factory: TrainerFactory) -> None:
    for kind in ("bpe", "unigram"):
        for value in (True, False):
            source = factory.build_tokenizers(kind=kind, vocabulary=400, shared=True, byte_fallback=value).source
            assert (UNK in source.encode("a ☃ b")) != value
            assert (source.decode(source.encode("a ☃ b")) == "a ☃ b") == value


def check_text_lowercase(factory: TrainerFactory) -> None:
    for kind in ("word", "bpe"):
        for value in (True, False):
            source = factory.build_tokenizers(kind=kind, vocabulary=400, shared=True, lowercase=value).source
            assert (source.encode("The Children") == source.encode("the children")) == value


def check_text_dropout(factory: TrainerFactory) -> None:
    rows = np.arange(40)
    changes = {"text.kind": "bpe", "text.vocabulary": 400, "text.shared": True}
    lengths = []
    for value in (0.0, 0.2, 0.8):
        trainer = factory.build({**changes, "text.dropout": value})
        first, again, other = (trainer.dataset.make_batch(rows, seed) for seed in (1, 1, 2))
        assert torch.equal(first.source, again.source)
        assert (first.source.shape == other.source.shape and torch.equal(first.source, other.source)) == (value == 0)
        assert [trainer.validate.tokenizers.source.decode(ids) for ids in first.source.tolist()] == [
            trainer.validate.tokenizers.source.decode(ids) for ids in other.source.tolist()
        ], "other segmentations of the same text"
        lengths.append(int(first.lengths.sum()))
    assert lengths == sorted(set(lengths)), "more dropout gives more tokens"


def check_data_train(factory: TrainerFactory) -> None:
    named = [str(path) for path in corpus_files(factory.corpus, "test")]
    dev = {"data.dev": [str(path) for path in corpus_files(factory.corpus, "dev")]}
    assert len(factory.build({"data.train": named, **dev}).dataset) == 30
    assert len(factory.build(dev, corpus_files(factory.corpus, "train")).dataset) == 300
    recipe = override(read_recipe("bahdanau2015"), {"data.train": named, **dev, **TINY})
    caught: list[Trainer] = []
    factory.patch.setattr(Trainer, "fit", lambda trainer: caught.append(trainer))
    train(recipe, None, factory.new_folder() / "recipe")
    train(recipe, corpus_files(factory.corpus, "train"), factory.new_folder() / "named")
    assert [len(trainer.dataset) for trainer in caught] == [30, 300], "an argument overrides the key"


def check_data_dev(factory: TrainerFactory) -> None:
    dev = [str(path) for path in corpus_files(factory.corpus, "dev")]
    given, held = factory.build({"data.dev": dev}), factory.build({"data.dev": None})
    assert given.validate.pairs == read_all_pairs(corpus_files(factory.corpus, "dev"))
    everything = read_all_pairs(corpus_files(factory.corpus, "train"))
    assert len(given.dataset) == len(everything)
    assert set(held.validate.pairs) < set(everything)
    assert len(held.dataset) + len(held.validate.pairs) == len(everything), (
        "dev pairs are held out of the training data"
    )


def two_corpora_files(factory: TrainerFactory) -> list[Path]:
    return [*corpus_files(factory.corpus, "train"), *corpus_files(factory.corpus, "test")]


def check_data_weights(factory: TrainerFactory) -> None:
    dev = {"data.dev": [str(path) for path in corpus_files(factory.corpus, "dev")]}
    for value, first, second in (([2, 0.5], 2, 15), ([0.0, 3.0], 0, 90), (None, 1, 30)):
        order = factory.build({"data.weights": value, **dev}, two_corpora_files(factory)).sampler
        for epoch in (0, 1):
            times = np.bincount(order.epoch_rows(epoch), minlength=330)
            assert (times[:300] == first).all()
            assert times[300:].sum() == second


def check_data_mix(factory: TrainerFactory) -> None:
    first, second = corpus_files(factory.corpus, "train"), corpus_files(factory.corpus, "test")
    general = {"data.mix": [str(path) for path in second], "data.weights": [2]}
    for value in (0.25, 0.6):
        trainer = factory.build({**general, "data.mix_fraction": value}, first)
        sources = {pair.source for pair in trainer.validate.pairs}
        assert sources <= set(factory.read_lines("train", "en")), "no dev set is held out of general text"
        own = trainer.dataset.parts[0].num_examples
        rows = trainer.sampler.epoch_rows(0)
        assert np.mean(rows >= own) == pytest.approx(value, abs=0.01)
    assert len(factory.build({}, first).dataset.parts) == 1


def check_data_tags(factory: TrainerFactory) -> None:
    dev = {"data.dev": [str(path) for path in corpus_files(factory.corpus, "dev")]}
    for value in (None, [None, "bt"], ["web", "bt"]):
        trainer = factory.build({"data.tags": value, **dev}, two_corpora_files(factory))
        source = trainer.validate.tokenizers.source
        for rows, tag in ((range(300), (value or [None])[0]), (range(300, 330), (value or [None])[-1])):
            firsts = {int(trainer.dataset.source[row][0]) for row in rows}
            if tag is None:
                assert not any(source.is_tag(first) for first in firsts)
            else:
                assert firsts == {source.find_tag_id(tag)}


def check_data_alignments(factory: TrainerFactory) -> None:
    dev = {"data.dev": [str(path) for path in corpus_files(factory.corpus, "dev")], "text.vocabulary": 5000}
    links = {"data.alignments": str(factory.corpus / "train.align")}
    assert factory.build({**dev, **links}).dataset.make_batch(np.arange(5)).guide is None, "needs loss.guided"
    guide = factory.build({**dev, **links, "loss.guided": 0.5}).dataset.make_batch(np.arange(40)).guide
    gold = read_gold_alignments(factory.corpus / "train.align", read_all_pairs(corpus_files(factory.corpus, "train")))
    checked = 0
    for row, (source, target) in enumerate(read_all_pairs(corpus_files(factory.corpus, "train"))[:40]):
        whole = [all(part.isalpha() for part in text.rstrip(".?!").split()) for text in (source, target)]
        if not all(whole) or source[-1].isalpha() or target[-1].isalpha():
            continue  # in the other pairs words are tokens, except for the final punctuation mark
        checked += 1
        linked = {(s, t) for t, s in (guide[row] > 0).nonzero().tolist()}
        words = len(source.split()), len(target.split())
        expected = {(s, t) for s, t in linked if s < words[0] and t < words[1]}
        assert expected == gold[row].possible
        sums = guide[row].sum(1)
        assert all(float(one) == pytest.approx(1.0) for one in sums[sums > 0])
    assert checked > 20


def check_language(side: str) -> Callable[[TrainerFactory], None]:
    def check(factory: TrainerFactory) -> None:
        for value, found in ((None, {"source": "en", "target": "de"}[side]), ("xx", "xx")):
            trainer = factory.build({f"data.{side}": value})
            assert trainer.run.read_config()["data"][side] == found

    return check


def check_data_max_length(factory: TrainerFactory) -> None:
    sizes = [
        max(len(source), len(target))
        for source, target in zip(*token_rows(factory.build({"data.max_length": 100}).dataset), strict=True)
    ]
    for value in (8, 10):
        trainer = factory.build(
            {"data.max_length": value, "data.dev": [str(path) for path in corpus_files(factory.corpus, "dev")]}
        )
        assert max(max(map(len, side)) for side in token_rows(trainer.dataset)) == value
        assert len(trainer.dataset) < 300
        assert trainer.run.read_config()["data"]["max_length"] == value
    assert max(sizes) > 10


def check_data_longest(factory: TrainerFactory) -> None:
    sizes = [len(ids) for side in token_rows(factory.build({}).dataset) for ids in side]
    for value, found in ((None, max(sizes)), (5, 5)):
        trainer = factory.build({"data.longest": value})
        assert trainer.run.read_config()["data"]["longest"] == found
        assert len(trainer.dataset) == len(sizes) // 2, "no pair is left out"


def check_data_sentences(factory: TrainerFactory) -> None:
    lines = [factory.read_lines("train", side) for side in ("en", "de")]
    doubled = [factory.new_folder() / f"doubled.{side}" for side in ("en", "de")]
    for path, some in zip(doubled, lines, strict=True):
        several = [f"{some[number]} {some[-1]}" if number % 2 else line for number, line in enumerate(some)]
        path.write_text("\n".join(several) + "\n", encoding="utf-8")
    for data, value, found in ((None, None, 1), (doubled, None, 2), (doubled, 1, 1)):
        assert factory.build({"data.sentences": value}, data).run.read_config()["data"]["sentences"] == found
    try:
        with pytest.MonkeyPatch.context() as changed:
            changed.setitem(sys.modules, "sentencex", None)
            find_sentencex_version.cache_clear()
            for given in (None, 3):
                trainer = factory.build({"data.sentences": given}, doubled)
                assert trainer.run.read_config()["data"]["sentences"] == given
    finally:
        find_sentencex_version.cache_clear()


def token_rows(source: ParallelDataset) -> list[list[list[int]]]:
    return [[list(side[row]) for row in range(len(side))] for side in (source.source, source.target)]


def check_data_dev_pairs(factory: TrainerFactory) -> None:
    for value, held in ((7, 7), (20, 20), (1000, 30)):
        assert len(factory.build({"data.dev_pairs": value}).validate.pairs) == held, "at most a tenth of the corpus"


class RecordingExamples(ParallelDataset):
    """Examples that write a file per reading process, and optionally block forever."""

    def __init__(self, folder: Path, hangs: bool = False) -> None:
        whole = make_examples()
        super().__init__(whole.source, whole.target)
        self.folder = folder
        self.hangs = hangs

    def make_batch(self, rows: Indices, seed: int = 0) -> Seq2SeqBatch:
        (self.folder / str(os.getpid())).touch()
        if self.hangs:
            signal.pause()
        return super().make_batch(rows, seed)


def make_reading_trainer(factory: TrainerFactory, source: RecordingExamples, **data: Any) -> Any:
    trainer = factory.make()
    settings = TrainingSettings(steps=6, batch_tokens=40, tensorboard=False, validate_every=9)
    return Trainer(trainer.model, source, trainer.validate, settings, trainer.run, CPU, DataSettings(**data))


def check_data_workers(factory: TrainerFactory) -> None:
    ends = []
    for value in (0, 2):
        seen = factory.new_folder()
        trainer = make_reading_trainer(factory, RecordingExamples(seen), workers=value)
        trainer.fit()
        found = {int(path.name) for path in seen.iterdir()}
        assert (found == {os.getpid()}) == (value == 0)
        assert len(found) == max(1, value)
        ends.append(trainer.model.state_dict())
    assert are_state_dicts_equal(*ends), "workers do not change the result"


def check_data_timeout(factory: TrainerFactory) -> None:
    trainer = make_reading_trainer(factory, RecordingExamples(factory.new_folder(), hangs=True), workers=1, timeout=1)
    with pytest.raises(UserError, match=r"loading training data failed: .*after 1 seconds"):
        trainer.fit()


def check_training_steps(factory: TrainerFactory) -> None:
    for value in (3, 5):
        assert factory.make(steps=value).fit().step == value


def check_training_epochs(factory: TrainerFactory) -> None:
    for value in (1.0, 2.5):
        trainer = factory.make(steps=None, epochs=value, validate_every=99, log_every=1)
        assert trainer.sampler.compute_epochs(trainer.fit().data_position) >= value
        begun = [row["epoch"] for row in trainer.run.read_metrics() if row["kind"] == "train"]
        assert begun[0] == 0.0
        assert all(epoch < value for epoch in begun), "training ends at the limit"


def check_training_minutes(factory: TrainerFactory) -> None:
    updates = []
    for value in (1.0, 5.0):
        trainer = factory.make(steps=None, minutes=value, validate_every=99)
        ticks = count(step=5)  # seconds between two readings of the clock
        trainer.clock = lambda ticks=ticks: float(next(ticks))
        updates.append(trainer.fit().step)
    assert 0 < 4 * updates[0] < updates[1] <= 60


def check_training_batch_tokens(factory: TrainerFactory) -> None:
    for value in (40, 90):
        order = factory.make_order(batch_tokens=value)
        taken = [
            len(rows) * int(order.sizes[rows].max()) for rows, _ in islice(order.iterate_batches(SamplerPosition()), 60)
        ]
        assert 0.8 * value < max(taken) <= value


def check_training_accumulate(factory: TrainerFactory) -> None:
    batches = [rows.tolist() for rows, _ in islice(factory.make().sampler.iterate_batches(SamplerPosition()), 6)]
    for value in (1, 3):
        trainer = factory.make(accumulate=value, optimizer="sgd", learning_rate=1.0, warmup=0, clip=None, steps=1)
        share = next(trainer.load_update_batches())
        assert len(share.batches) == value
        together = trainer.dataset.make_batch(np.concatenate(batches[:value]), 0)
        trainer.model.loss(*together).backward()
        expected = [weight.detach() - weight.grad for weight in trainer.model.parameters()]
        trainer.model.zero_grad()
        trainer.fit()
        for weight, one in zip(trainer.model.parameters(), expected, strict=True):
            torch.testing.assert_close(weight.detach(), one)


def check_training_pool(factory: TrainerFactory) -> None:
    padding = []
    for value in (1, 4, 40):
        order = factory.make_order(pool=value)
        assert order.examples_per_pool == int(value * 40 / order.sizes.mean())
        rows = [rows for rows, place in islice(order.iterate_batches(SamplerPosition()), 99) if place.epoch == 0]
        padding.append(sum(int((order.sizes[some].max() - order.sizes[some]).sum()) for some in rows))
    assert padding == sorted(padding, reverse=True), "larger pools need less padding"
    assert padding[0] > 2 * padding[-1]


def check_training_curriculum(factory: TrainerFactory) -> None:
    for value in (0, 1, 2):
        order = factory.make_order(curriculum=value)
        for epoch in range(3):
            quarters = np.array_split(order.sizes[order.epoch_rows(epoch)], 4)
            late = quarters[-1].mean() - quarters[0].mean()
            assert (late > 0.8) == (epoch < value)


def apply_updates(updates: int = 1, **settings: Any) -> tuple[float, Tensor]:
    """Return a weight of 2 after updates with the gradients 0.5, −1, 0.25, and its parameter."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    made = build_optimizer(module, TrainingSettings(**{"learning_rate": 0.1, **settings}))
    for gradient in (0.5, -1.0, 0.25)[:updates]:
        module.weight.grad = torch.tensor([[gradient]])
        made.step()
    return float(module.weight.detach()), module.weight


def reference_adam(
    updates: int, b1: float, b2: float, epsilon: float, decay: float = 0.0, apart: bool = False
) -> float:
    w, m, v = 2.0, 0.0, 0.0
    for t, g in enumerate((0.5, -1.0, 0.25)[:updates], 1):
        w, g = (w * (1 - 0.1 * decay), g) if apart else (w, g + decay * w)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w -= 0.1 * (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + epsilon)
    return w


def check_training_optimizer(factory: TrainerFactory) -> None:
    sorts = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "adadelta": torch.optim.Adadelta,
    }
    for value, kind in sorts.items():
        assert type(factory.make(optimizer=value).optimizer) is kind


def learning_rates(factory: TrainerFactory, **settings: Any) -> list[float]:
    """Return the learning rate of each update of a run."""
    trainer = factory.make(**{"log_every": 1, "validate_every": 99, "schedule": "constant", "warmup": 0, **settings})
    trainer.fit()
    return [row["learning_rate"] for row in trainer.run.read_metrics() if row["kind"] == "train"]


def check_training_learning_rate(factory: TrainerFactory) -> None:
    for value in (0.1, 0.3):
        assert learning_rates(factory, steps=2, learning_rate=value) == [value, value]
        multiplied = learning_rates(factory, steps=9, learning_rate=value, warmup=3, schedule="inverse-sqrt")
        assert max(multiplied) == value
        assert multiplied[-1] == pytest.approx(value * math.sqrt(3 / 9))
        trainer = factory.make(learning_rate=value, optimizer="sgd", warmup=0, schedule="constant", clip=1e-3, steps=1)
        before = [weight.detach().clone() for weight in trainer.model.parameters()]
        trainer.fit()
        moved = [weight.detach() - old for weight, old in zip(trainer.model.parameters(), before, strict=True)]
        assert float(torch.cat([one.flatten() for one in moved]).norm()) == pytest.approx(value * 1e-3, rel=1e-2)


def check_training_betas(factory: TrainerFactory) -> None:
    for kind in ("adam", "adamw"):
        for value in ((0.9, 0.98), (0.5, 0.7)):
            found, _ = apply_updates(3, optimizer=kind, betas=value, epsilon=1e-8)
            assert found == pytest.approx(reference_adam(3, *value, 1e-8), rel=1e-6)


def check_training_epsilon(factory: TrainerFactory) -> None:
    for value in (1e-8, 0.5):
        for kind in ("adam", "adamw"):
            found, _ = apply_updates(1, optimizer=kind, betas=(0.9, 0.98), epsilon=value)
            assert found == pytest.approx(2 - 0.1 * 0.5 / (0.5 + value), rel=1e-6)
        found, _ = apply_updates(1, optimizer="adadelta", epsilon=value)
        by_hand = math.sqrt(value) / math.sqrt(0.05 * 0.5**2 + value) * 0.5
        assert found == pytest.approx(2 - 0.1 * by_hand, rel=1e-6)


def check_training_weight_decay(factory: TrainerFactory) -> None:
    for value in (0.0, 0.2):
        settings = {"betas": (0.9, 0.98), "epsilon": 1e-8, "weight_decay": value}
        expected = {kind: reference_adam(3, 0.9, 0.98, 1e-8, value, kind == "adamw") for kind in ("adam", "adamw")}
        for kind, by_hand in expected.items():
            assert apply_updates(3, optimizer=kind, **settings)[0] == pytest.approx(by_hand, rel=1e-6)
        assert apply_updates(1, optimizer="sgd", **settings)[0] == pytest.approx(2 - 0.1 * (0.5 + 2 * value), rel=1e-6)
        g = 0.5 + 2 * value
        by_hand = math.sqrt(1e-8) / math.sqrt(0.05 * g * g + 1e-8) * g
        assert apply_updates(1, optimizer="adadelta", **settings)[0] == pytest.approx(2 - 0.1 * by_hand, rel=1e-6)


def check_training_schedule(factory: TrainerFactory) -> None:
    common = {"steps": 6, "learning_rate": 1e-3, "warmup": 2, "halve_after": 0.0, "halve_every": 99.0}
    shares = {
        "constant": [0.5, 1, 1, 1, 1, 1],
        "inverse-sqrt": [0.5, *(math.sqrt(2 / step) for step in range(2, 7))],
        "halving": [0.25, 0.5, 0.5, 0.5, 0.5, 0.5],
        "cosine": [0.5, *((1 + math.cos(math.pi * (step - 2) / 4)) / 2 for step in range(2, 7))],
        "linear": [1 - step / 6 for step in range(1, 7)],
    }
    for value, expected in shares.items():
        found = learning_rates(factory, **common, schedule=value)
        assert found == pytest.approx([1e-3 * share for share in expected], abs=1e-12)


def check_training_warmup(factory: TrainerFactory) -> None:
    for value in (0, 4):
        rising = [min(1.0, step / value) if value else 1.0 for step in range(1, 7)]
        assert learning_rates(factory, steps=6, learning_rate=0.01, warmup=value) == pytest.approx(
            [0.01 * r for r in rising]
        )


def learning_rate_factors(factory: TrainerFactory, after: float, every: float) -> list[tuple[float, float]]:
    """Return for each update the epoch and the fraction of the base learning rate."""
    halving: dict[str, Any] = {"schedule": "halving", "halve_after": after, "halve_every": every, "warmup": 0}
    trainer = factory.make(**halving, learning_rate=0.01, steps=None, epochs=4.0, log_every=1, validate_every=99)
    trainer.fit()
    rows = [row for row in trainer.run.read_metrics() if row["kind"] == "train"]
    return [(row["epoch"], row["learning_rate"] / 0.01) for row in rows]


def check_training_halve_after(factory: TrainerFactory) -> None:
    for value in (1.0, 2.5):
        for epoch, share in learning_rate_factors(factory, value, 99.0):
            assert share == pytest.approx(1.0 if epoch < value else 0.5)


def check_training_halve_every(factory: TrainerFactory) -> None:
    for value in (0.5, 1.0):
        for epoch, share in learning_rate_factors(factory, 1.0, value):
            assert share == pytest.approx(1.0 if epoch < 1 else 0.5 ** (1 + math.floor((epoch - 1) / value)))


def check_training_clip(factory: TrainerFactory) -> None:
    norms = {}
    for value in (None, 0.01, 1e6):
        trainer = factory.make(clip=value)
        found = gradients_of(trainer)
        found.accumulate(next(trainer.load_update_batches()).batches, 1, 1)
        before = float(found.clip_norm(trainer.optimizer))
        norms[value] = float(torch.stack([weight.grad.norm() for weight in trainer.model.parameters()]).norm())
    assert norms[0.01] == pytest.approx(0.01, rel=1e-3)
    assert before > 0.01
    assert norms[None] == pytest.approx(before, rel=1e-6)
    assert norms[1e6] == pytest.approx(before, rel=1e-6), "smaller norms are not changed"


def check_training_ema(factory: TrainerFactory) -> None:
    for value in (0.0, 0.15):
        trainer = factory.make(ema=value, steps=4, validate_every=4)
        mean = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        update = trainer.train_step

        def noted(share: Any, trainer: Any = trainer, mean: dict[str, Tensor] = mean, update: Any = update) -> Any:
            made = update(share)
            kept = min(value, (1 + trainer.train_state.step) / (10 + trainer.train_state.step))  # noqa: B023 - called within this iteration
            for name, weight in trainer.model.named_parameters():
                mean[name] = kept * mean[name] + (1 - kept) * weight.detach()
            return made

        trainer.train_step = noted
        trainer.fit()
        saved = checkpoint.read_tensors(trainer.run.checkpoint_folder(4), checkpoint.MODEL_FILE)
        for name, weight in trainer.model.named_parameters():
            torch.testing.assert_close(saved[name], mean[name])
            assert torch.equal(saved[name], weight.detach()) == (value == 0.0)


def check_training_average(factory: TrainerFactory) -> None:
    for value in (1, 2, 3):
        trainer = factory.make([1.0] * 9, average=value, keep=3, steps=6)
        trainer.fit()
        assert trainer.run.average_folder.exists() == (value > 1)
        if value > 1:
            newest = [trainer.run.checkpoint_folder(step) for step in (2, 4, 6)][-value:]
            each = [checkpoint.read_tensors(folder, checkpoint.MODEL_FILE) for folder in newest]
            for name, mean in checkpoint.read_tensors(trainer.run.average_folder, checkpoint.MODEL_FILE).items():
                torch.testing.assert_close(mean, sum(one[name] for one in each) / value)
    worse = factory.make([1.0, 2.0, 3.0, 0.5], average=2, keep=3, steps=6)
    worse.fit()
    assert not worse.run.average_folder.exists(), "a worse average is discarded"


def check_training_validate_every(factory: TrainerFactory) -> None:
    for value, found in ((2, [2, 4, 6]), (3, [3, 6]), (5, [5, 6])):
        trainer = factory.make(validate_every=value, steps=6)
        trainer.fit()
        assert [row["step"] for row in trainer.run.read_metrics() if row["kind"] == "dev"] == found


def check_training_validate_pairs(factory: TrainerFactory) -> None:
    losses = []
    for value in (3, 17):
        trainer = factory.build({"training.validate_pairs": value})
        validator = trainer.validate
        assert isinstance(validator, TranslationValidator)
        assert len(validator._translate_greedily(trainer.model, CPU)) == value
        losses.append(validator._compute_loss(trainer.model, CPU))
    assert losses[0] == losses[1], "the loss is that of the whole dev set"


def check_training_best(factory: TrainerFactory) -> None:
    found = iter([Validation(loss, {"bleu": bleu}, "bleu") for loss, bleu in ((3.0, 1.0), (1.0, 2.0), (2.0, 9.0))] * 2)
    for value, step in (("bleu", 6), ("loss", 4)):
        trainer = factory.make(best=value, steps=6)
        trainer.validate = lambda *_: next(found)
        trainer.fit()
        assert trainer.run.find_best_step() == step


def check_training_patience(factory: TrainerFactory) -> None:
    falling = [9.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    for value, step in ((1, 4), (3, 8), (None, 12)):
        assert factory.make(falling, patience=value, steps=12).fit().step == step


def check_training_bad_updates(factory: TrainerFactory) -> None:
    for value in (2, 4):
        trainer = factory.make(bad_updates=value, steps=20)
        before = [weight.detach().clone() for weight in trainer.model.parameters()]
        make_loss_nan(trainer, set(range(1, 21)))
        with pytest.raises(UserError, match=f"at step {value} the loss is nan .* {value} updates in a row"):
            trainer.fit()
        assert all(torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))


def check_training_checkpoint_every(factory: TrainerFactory) -> None:
    for value, found in ((2, [2, 4, 5, 6, 8]), (3, [3, 5, 6, 8]), (99, [5, 8])):
        trainer = factory.make(checkpoint_every=value, validate_every=5, keep=9, steps=8)
        trainer.fit()
        assert trainer.run.list_steps() == found, "every validation writes one too"


def check_training_keep(factory: TrainerFactory) -> None:
    for value, found in ((1, [2, 8]), (2, [2, 6, 8]), (4, [2, 4, 6, 8])):
        trainer = factory.make([9.0, 1.0, 1.0, 1.0], keep=value, patience=None)
        trainer.fit()
        assert trainer.run.list_steps() == found, "the best one is kept too"


def check_training_keep_best(factory: TrainerFactory) -> None:
    for value, found in ((1, [4, 10]), (2, [2, 4, 10]), (3, [2, 4, 8, 10])):
        trainer = factory.make([7.0, 9.0, 1.0, 5.0, 2.0], keep=1, keep_best=value, steps=10, patience=None)
        trainer.fit()
        assert trainer.run.list_steps() == found


def check_training_log_every(factory: TrainerFactory) -> None:
    for value, found in ((1, [1, 2, 3, 4, 5, 6]), (3, [3, 6])):
        trainer = factory.make(log_every=value, steps=6)
        trainer.fit()
        assert [row["step"] for row in trainer.run.read_metrics() if row["kind"] == "train"] == found


def check_training_tensorboard(factory: TrainerFactory) -> None:
    for value in (True, False):
        trainer = factory.make(tensorboard=value, steps=1)
        trainer.fit()
        assert bool(list((trainer.run.folder).glob("tensorboard/events*"))) == value


def check_training_precision(factory: TrainerFactory) -> None:
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    kinds |= dict.fromkeys(("auto", "mixed"), torch.float32)
    for value, kind in kinds.items():
        trainer = factory.make(precision=value)
        seen: list[torch.dtype] = []
        trainer.model.decoder.W_s.register_forward_hook(lambda m, given, out, seen=seen: seen.append(out.dtype))
        found = gradients_of(trainer)
        found.accumulate(next(trainer.load_update_batches()).batches, 1, 1)
        assert set(seen) == {kind}
        assert found.scaler.is_enabled() == (value == "fp16")
        assert all(weight.grad.dtype == torch.float32 for weight in trainer.model.parameters())


def check_training_device(factory: TrainerFactory) -> None:
    for there in ((), ("mps",), ("cuda", "mps")):
        with factory.patch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda there=there: "cuda" in there)
            patch.setattr(torch.cuda, "current_device", lambda: 0)
            patch.setattr(torch.backends.mps, "is_available", lambda there=there: "mps" in there)
            assert choose_device("auto").type == (there[0] if there else "cpu")
            assert choose_device("cpu").type == "cpu"
            for name in ("cuda", "mps"):
                if name in there:
                    assert choose_device(name).type == name
                else:
                    with pytest.raises(UserError, match=f"this machine has no {name}"):
                        choose_device(name)
    trainer = factory.build({"training.device": "cpu"})
    assert trainer.device.type == next(trainer.model.parameters()).device.type == "cpu"


def check_training_threads(factory: TrainerFactory) -> None:
    used, number = [], [4]
    with factory.patch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: number[0])
        patch.setattr(torch, "set_num_threads", lambda threads: number.__setitem__(0, threads))
        patch.setattr(Trainer, "fit", lambda _: used.append(torch.get_num_threads()))
        for value in (2, 3):
            changes = {**TINY, "model.size": 8, "training.threads": value}
            train("bahdanau2015", corpus_files(factory.corpus, "train"), factory.new_folder() / "run", **changes)
    assert (used, number) == ([2, 3], [4])


def check_training_seed(factory: TrainerFactory) -> None:
    fixed = {"data.dev": [str(path) for path in corpus_files(factory.corpus, "dev")], "model.dropout": 0.3}
    trainers = [factory.build({"training.seed": value, **fixed}) for value in (1, 1, 2)]
    first, again, other = (trainer.model.state_dict() for trainer in trainers)
    assert are_state_dicts_equal(first, again)
    assert not are_state_dicts_equal(first, other), "the seed of the weights"
    orders = [
        [rows.tolist() for rows, _ in islice(trainer.sampler.iterate_batches(SamplerPosition()), 5)]
        for trainer in trainers
    ]
    assert orders[0] == orders[1] != orders[2], "the seed of the data order"
    share = next(trainers[0].load_update_batches())
    found = []
    for trainer in trainers:
        trainer.model.load_state_dict(first)
        gradients_of(trainer).accumulate(share.batches, 1, 1)
        found.append([weight.grad.tolist() for weight in trainer.model.parameters() if weight.grad is not None])
    assert found[0] == found[1] != found[2], "the seed of dropout"


def check_training_init_from(factory: TrainerFactory) -> None:
    parent = train(
        "bahdanau2015",
        corpus_files(factory.corpus, "test"),
        factory.new_folder() / "run",
        **{**TINY, "training.steps": 2},
    )
    child = factory.build({"training.init_from": str(parent.folder), "model.size": 24, "training.seed": 5})
    assert are_state_dicts_equal(
        child.model.state_dict(), parent.load_model(parent.load_tokenizers().vocab_sizes).state_dict()
    )
    theirs: Any = parent.load_tokenizers().source
    assert child.validate.tokenizers.source.vocabulary == theirs.vocabulary
    alone = factory.build({"model.size": 24, "training.seed": 5})
    assert alone.validate.tokenizers.source.vocabulary != theirs.vocabulary


TRAINING_CHECKS: dict[str, Callable[[TrainerFactory], None]] = {
    "text.kind": check_text_kind,
    "text.vocabulary": check_text_vocabulary,
    "text.vectors": check_text_vectors,
    "text.tune_vectors": check_text_tune_vectors,
    "text.shared": check_text_shared,
    "text.byte_fallback": check_text_byte_fallback,
    "text.lowercase": check_text_lowercase,
    "text.dropout": check_text_dropout,
    "data.train": check_data_train,
    "data.dev": check_data_dev,
    "data.weights": check_data_weights,
    "data.tags": check_data_tags,
    "data.mix": check_data_mix,
    "data.mix_fraction": check_data_mix,
    "data.alignments": check_data_alignments,
    "data.source": check_language("source"),
    "data.target": check_language("target"),
    "data.max_length": check_data_max_length,
    "data.longest": check_data_longest,
    "data.sentences": check_data_sentences,
    "data.dev_pairs": check_data_dev_pairs,
    "data.workers": check_data_workers,
    "data.timeout": check_data_timeout,
    "training.steps": check_training_steps,
    "training.epochs": check_training_epochs,
    "training.minutes": check_training_minutes,
    "training.batch_tokens": check_training_batch_tokens,
    "training.accumulate": check_training_accumulate,
    "training.pool": check_training_pool,
    "training.curriculum": check_training_curriculum,
    "training.optimizer": check_training_optimizer,
    "training.learning_rate": check_training_learning_rate,
    "training.betas": check_training_betas,
    "training.epsilon": check_training_epsilon,
    "training.weight_decay": check_training_weight_decay,
    "training.schedule": check_training_schedule,
    "training.warmup": check_training_warmup,
    "training.halve_after": check_training_halve_after,
    "training.halve_every": check_training_halve_every,
    "training.clip": check_training_clip,
    "training.ema": check_training_ema,
    "training.average": check_training_average,
    "training.validate_every": check_training_validate_every,
    "training.validate_pairs": check_training_validate_pairs,
    "training.best": check_training_best,
    "training.patience": check_training_patience,
    "training.bad_updates": check_training_bad_updates,
    "training.checkpoint_every": check_training_checkpoint_every,
    "training.keep": check_training_keep,
    "training.keep_best": check_training_keep_best,
    "training.log_every": check_training_log_every,
    "training.tensorboard": check_training_tensorboard,
    "training.precision": check_training_precision,
    "training.device": check_training_device,
    "training.threads": check_training_threads,
    "training.seed": check_training_seed,
    "training.init_from": check_training_init_from,
}
CHECKED_ELSEWHERE = {
    "training.shard": "tests/training/test_distributed.py::test_sharded_training_equals_one_process",
    "evaluation.tokenize": "tests/evaluate/test_bleu_tokenizers.py::test_recipe_names_the_tokenizer_of_dev_bleu",
}


def recipe_keys(recipe: Mapping[str, Any]) -> set[str]:
    return {f"{section}.{key}" for section in SECTIONS for key in recipe[section]}


def test_every_key_of_every_recipe_has_a_check() -> None:
    checked = [*MODEL_CHECKS, *TRAINING_CHECKS, *CHECKED_ELSEWHERE]
    assert len(checked) == len(set(checked))
    assert set(checked) == set().union(*map(recipe_keys, RECIPES.values()))


def test_checks_in_other_files_exist() -> None:
    root = Path(__file__).parent.parent.parent
    for key in CHECKED_ELSEWHERE:
        path, _, name = CHECKED_ELSEWHERE[key].partition("::")
        assert f"def {name}(" in (root / path).read_text(encoding="utf-8")


# Keys whose check expects something else of these recipes than of other recurrent models.
SPECIAL_CASES = {
    "model.dropout": ("luong2015-global", "mino2017", "xu2015-hard"),
    "model.initialisation": ("luong2015-global", "sutskever2014"),
    "model.score": ("mino2017",),
    "model.tie": ("bahdanau2015", "xu2015-soft"),
    "loss.guided": ("cho2014",),
}


def model_parameters() -> list[Any]:
    """Return all pairs of a model key and a recipe that has it; slow where another recipe shows the same."""
    parameters = []
    for key in MODEL_CHECKS:
        names = [name for name, recipe in RECIPES.items() if key in recipe_keys(recipe)]
        recurrent = [name for name in names if name not in TRANSFORMERS]
        transformers = [name for name in names if name in TRANSFORMERS]
        fast = {*recurrent[:1], *transformers[:1], *SPECIAL_CASES.get(key, ())}
        assert fast <= set(names)
        parameters += [pytest.param(key, name, marks=[pytest.mark.slow] * (name not in fast)) for name in names]
    return parameters


@pytest.mark.parametrize(("key", "name"), model_parameters())
def test_model_option_takes_effect(key: str, name: str) -> None:
    MODEL_CHECKS[key](name)


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[pytest.mark.slow] * (key == "data.timeout")) for key in TRAINING_CHECKS]
)
def test_training_option_takes_effect(key: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TRAINING_CHECKS[key](TrainerFactory(corpus, tmp_path, monkeypatch))
