"""Every key of every recipe changes what its comment says that it changes."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.corpora import translation_recipes
from support.training import (
    TINY,
    corpus_files,
    gradients_of,
    make_examples,
    make_loss_nan,
    make_trainer,
    state_dicts_equal,
)
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batches import Batch
from regard.data.corpus import pairs
from regard.data.examples import Examples
from regard.data.order import Place
from regard.data.ragged import Indices
from regard.data.settings import DataSettings
from regard.errors import UserError
from regard.evaluate import read_gold
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
    hidden,
    prefix_mask,
)
from regard.recipes import SECTIONS, override, read
from regard.runs import checkpoint
from regard.symbols import BOS, PAD, UNK
from regard.tasks import Validation
from regard.tasks.translation import Validator
from regard.text import Subwords, Words
from regard.training import Trainer, TrainingSettings, choose_device, train
from regard.training.optimizer import optimizer

RECIPES = {name: read(name) for name in translation_recipes()}
TRANSFORMERS = [name for name, recipe in RECIPES.items() if recipe["model"]["kind"] == "transformer"]
BLIND = ("cho2014", "sutskever2014")  # without attention
SOURCE = TARGET = 13
SIZE = 8
LENGTHS = torch.tensor([6, 4, 2])
B, S, T = 3, 6, 5
CPU = torch.device("cpu")


# Models: small, in double precision, and with weights that are large enough to tell one number from another.


def raw(name: str, changes: Mapping[str, Any] = {}) -> Any:
    """A small model of a recipe, as it begins; `changes` are dotted keys."""
    small: dict[str, Any] = {"model.size": SIZE, "model.layers": 1, "model.dropout": 0.0}
    heads = {"model.heads": 2, "model.feedforward": None} if name in TRANSFORMERS else {}
    torch.manual_seed(7)
    return build(override(RECIPES[name], {**small, **heads, **changes}), SOURCE, TARGET)


def made(name: str, changes: Mapping[str, Any] = {}) -> Any:
    """The same for its numbers: the same weights wherever the shapes are the same, and no dropout at work."""
    model = raw(name, changes).double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return model


def sources() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(4, SOURCE, (B, S), generator=generator).masked_fill(~prefix_mask(LENGTHS, S), PAD)


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source, lengths, target in and target out; the second target ends early."""
    generator = torch.Generator().manual_seed(4)
    out = torch.randint(4, TARGET, (B, T), generator=generator)
    out[1, 3:] = PAD
    before = torch.cat((torch.full((B, 1), BOS), out[:, :-1]), 1)
    return sources(), LENGTHS, before, out


def real() -> Tensor:
    return batch()[3] != PAD


def count(model: Any) -> int:
    """What the summed loss is divided by."""
    return int(real().sum()) if model.criterion.settings.per == "token" else B


def decoded(model: Any) -> Any:
    source, lengths, target_in, _ = batch()
    return model.decoder(model.encode(source, lengths), target_in)


def looks(model: Any) -> Tensor:
    """Where it looked: B,T,S; of hard attention what the place was drawn from."""
    attended = decoded(model).attended
    chances = attended.probabilities
    weights: Tensor = (attended if chances is None else attended._replace(weights=chances)).dense(S)
    return weights


def reader(model: Any) -> Any:
    """The recurrent encoder, also where its annotations are taken apart into keys and values."""
    return getattr(model.encoder, "encoder", model.encoder)


def output_layer(model: Any) -> nn.Linear:
    (layer,) = [m for m in model.decoder.modules() if isinstance(m, nn.Linear) and m.out_features == TARGET]
    return layer


def stacks(model: Any) -> tuple[Any, Any]:
    """The layers of both sides."""
    if hasattr(model.decoder, "layers"):
        return model.encoder.layers, model.decoder.layers
    return reader(model).recurrent.forwards, model.decoder.recurrent.forwards


def embeddings(model: Any) -> tuple[nn.Embedding, nn.Embedding]:
    source, target = reader(model).embedding, model.decoder.embedding
    return getattr(source, "words", source), getattr(target, "words", target)


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def kind(name: str) -> None:
    def family(chosen: str) -> tuple[type, ...]:
        model = build({"model": {"kind": chosen, "size": SIZE}}, SOURCE, TARGET)
        return type(model), type(model.encoder), type(model.decoder)

    own, kinds = raw(name), {recipe["model"]["kind"] for recipe in RECIPES.values()}
    assert family(RECIPES[name]["model"]["kind"]) == (type(own), type(own.encoder), type(own.decoder))
    assert len({family(chosen) for chosen in kinds}) == len(kinds), "no two families are alike"
    with pytest.raises(UserError, match=r"there is no model\.kind 'luog'; did you mean 'luong'"):
        raw(name, {"model.kind": "luog"})


def size(name: str) -> None:
    for chosen in (8, 12):
        model = raw(name, {"model.size": chosen})
        assert [words.embedding_dim for words in embeddings(model)] == [chosen, chosen], "which it carries with it"
        if name in TRANSFORMERS:
            assert model.encode(*batch()[:2]).memory.keys.shape[-1] == chosen
            assert output_layer(model).in_features == chosen
        else:
            directions = 2 if RECIPES[name]["model"]["bidirectional"] else 1
            assert reader(model).recurrent.output_size == chosen * directions
            assert model.decoder.recurrent.output_size == chosen


def embedding(name: str) -> None:
    for chosen, width in ((5, 5), (None, SIZE)):
        model = raw(name, {"model.embedding": chosen})
        assert [words.embedding_dim for words in embeddings(model)] == [width, width]


def layers(name: str) -> None:
    for chosen in (1, 3):
        assert [len(stack) for stack in stacks(raw(name, {"model.layers": chosen}))] == [chosen, chosen]


def dropout(name: str) -> None:
    source, lengths, target_in, _ = batch()
    hard = {"model.soft_share": 1.0} if name == "xu2015-hard" else {}
    for chosen in (0.0, 0.5):
        model = made(name, {"model.dropout": chosen, "model.layers": 2, **hard})
        given: dict[str, list[Tensor]] = {}
        for place, module in model.named_modules():
            if isinstance(module, nn.Dropout):
                assert module.p == chosen
                module.register_forward_hook(partial(noted, given, place))
        assert torch.equal(*(model(source, lengths, target_in) for _ in range(2))), "not where a model is used"
        given.clear()
        read: list[Tensor] = []
        output_layer(model).register_forward_pre_hook(lambda layer, inputs, read=read: read.append(inputs[0]))
        model.train()
        first, second = (model(source, lengths, target_in) for _ in range(2))
        assert torch.equal(first, second) == (chosen == 0.0)
        assert set(given) == dropped(name, model)
        behind = any(read[0] is out for outs in given.values() for out in outs)
        assert behind == (name not in TRANSFORMERS and not name.startswith("luong2015")), "before the output"
        if name not in TRANSFORMERS:
            seen = [out for place, outs in given.items() if place.endswith("encoder.dropout") for out in outs[:2]]
            assert seen[1].shape[-1] == reader(model).recurrent.output_size, "the words, then what attention reads"
        if name not in TRANSFORMERS:  # with none on what layers read, there is none left that could be on their links
            for module in (reader(model).dropout, reader(model).recurrent.dropout):
                module.p = 0.0
            assert torch.equal(*(hidden(model.encode(source, lengths).state[-1]) for _ in range(2)))


def noted(given: dict[str, list[Tensor]], place: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
    given.setdefault(place, []).append(output)


def dropped(name: str, model: Any) -> set[str]:
    """Where dropout is at work, by the names of its modules."""
    if name not in TRANSFORMERS:
        side = "encoder.encoder" if name == "mino2017" else "encoder"
        places = {f"{side}.dropout", f"{side}.recurrent.dropout", "decoder.dropout", "decoder.recurrent.dropout"}
        deep = hasattr(getattr(model.decoder, "output", None), "dropout")
        return places | ({"decoder.output.dropout"} if deep else set())
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


def residual(name: str) -> None:
    for chosen in (False, True):
        model = made(name, {"model.residual": chosen, "model.layers": 2})
        for stack in (reader(model).recurrent, model.decoder.recurrent):
            x = torch.randn(B, S, stack.forwards[0].input_size, dtype=torch.float64)
            below, _ = stack.run(0, x, LENGTHS, None)
            above, _ = stack.run(1, below, LENGTHS, None)
            close(stack(x, LENGTHS)[0], above + below if chosen else above)


CELLS: dict[str, tuple[type, int]] = {"gru": (GRUCell, 3), "lstm": (LSTMCell, 4), "elman": (ElmanCell, 1)}


def cell(name: str) -> None:
    for chosen, (sort, gates) in CELLS.items():
        for stack in stacks(raw(name, {"model.cell": chosen})):
            assert stack[0].weight_hh.shape == (gates * SIZE, SIZE)
            assert type(stack[0]) is sort
    assert GRUCell(1, 1).form == "paper", "reset before the product"


def seen_from(model: Any, changed: int) -> list[bool]:
    """The places of the memory whose keys are others where one word of the source is another."""
    source, lengths = batch()[:2]
    other = source.clone()
    other[0, changed] = (source[0, changed] - 4 + 1) % (SOURCE - 4) + 4
    before, after = (model.encode(text, lengths).memory.keys[0] for text in (source, other))
    return [bool((left != right).any()) for left, right in zip(before, after, strict=True)]


def bidirectional(name: str) -> None:
    for chosen, seen in ((False, [False, False, True, True, True, True]), (True, [True] * S)):
        assert seen_from(made(name, {"model.bidirectional": chosen, "model.reverse": False}), 2) == seen


def reverse(name: str) -> None:
    forwards, backwards = [False, False, True, True, True, True], [True, True, True, False, False, False]
    for chosen, seen in ((False, forwards), (True, backwards)):
        assert seen_from(made(name, {"model.bidirectional": False, "model.reverse": chosen}), 2) == seen


def equal_widths(name: str) -> dict[str, Any]:
    """What makes keys as wide as queries, which a dot product needs."""
    if "key_value" in RECIPES[name]["model"]:
        return {"model.key_value": "separate"}
    return {"model.bidirectional": False}


def score(name: str) -> None:
    for chosen, sort in {"dot": Dot, "general": General, "concat": Concat, "location": Location}.items():
        model = raw(name, {"model.score": chosen, **equal_widths(name)})
        assert type(model.decoder.attention.score) is sort
        assert decoded(model).attended.dense(S).shape == (B, T, S)


def alignment(name: str) -> None:
    for chosen, sort in {"global": Global, "local-m": LocalMonotonic, "local-p": LocalPredictive}.items():
        model = made(name, {"model.alignment": chosen, "model.window": 1})
        assert type(model.decoder.attention.alignment) is sort
        seen = looks(model)[0] > 0
        if chosen == "global":
            assert seen.all()
        elif chosen == "local-m":
            along = [[abs(s - t) <= 1 for s in range(S)] for t in range(T)]
            assert seen.tolist() == along
        else:
            assert seen.sum(1).max() <= 3


def window(name: str) -> None:
    for where in ("local-m", "local-p"):
        for chosen in (1, 2):
            model = made(name, {"model.alignment": where, "model.window": chosen})
            places = decoded(model).attended.positions
            assert places.shape == (B, T, 2 * chosen + 1)
            assert (places[..., -1] - places[..., 0] == 2 * chosen).all()
            if where == "local-m":
                assert (places[0, :, chosen] == torch.arange(T)).all(), "so many to each side of the middle"


def coverage(name: str) -> None:
    source, lengths, target_in, _ = batch()
    for chosen in ("none", "linguistic", "neural"):
        model = made(name, {"model.coverage": chosen})
        covering = model.decoder.attention.coverage
        before = looks(model)
        if chosen == "none":
            assert covering is None
            assert model.decoder.start(model.encode(source, lengths)).memory.covered is None
            continue
        with torch.no_grad():
            covering.weight.mul_(-3.0)
        after = looks(model)
        close(after[:, 0], before[:, 0])
        assert not torch.allclose(after[:, 1:], before[:, 1:]), "from the second look on it reaches the score"
    state = model.decoder.start(model.encode(source, lengths))
    assert isinstance(covering.cell, GRUCell)
    assert not state.memory.covered.amount.any()
    _, state, _ = model.decoder.step(state, target_in[:, 0])
    assert state.memory.covered.amount.any()


def coverage_size(name: str) -> None:
    for chosen in (1, 4):
        model = made(name, {"model.coverage": "neural", "model.coverage_size": chosen})
        covered = model.decoder.start(model.encode(*batch()[:2])).memory.covered
        assert covered.amount.shape == (B, S, chosen)


def fertility(name: str) -> None:
    amounts = []
    for chosen in (1.0, 4.0):
        model = made(name, {"model.coverage": "linguistic", "model.fertility": chosen})
        state = model.decoder.start(model.encode(*batch()[:2]))
        assert (state.memory.covered.words <= chosen).all(), "the most words that one may make"
        assert (state.memory.covered.words > 0).all()
        _, state, _ = model.decoder.step(state, batch()[2][:, 0])
        amounts.append(state.memory.covered.amount)
    close(amounts[0], 4 * amounts[1])


def max_source(name: str) -> None:
    for chosen in (3, 5):
        model = made(name, {"model.score": "location", "model.max_source": chosen})
        assert len(model.decoder.attention.score.weight) == chosen
        assert ((looks(model)[0] > 0).any(0)).tolist() == [place < chosen for place in range(S)]


def tie(name: str) -> None:
    if name in TRANSFORMERS:
        tied = {"all": (True, True), "decoder": (False, True), "none": (False, False)}
        for chosen, (sides, output) in tied.items():
            model = raw(name, {"model.tie": chosen})
            source, target = embeddings(model)
            assert (source.weight is target.weight, target.weight is output_layer(model).weight) == (sides, output)
        apart = raw(name, {"model.tie": "all", "text.shared": False})
        assert embeddings(apart)[0].weight is not embeddings(apart)[1].weight
        return
    fits = {"model.maxout": SIZE} if "maxout" in RECIPES[name]["model"] else {}
    for one in (False, True):
        model = raw(name, {"model.tie": one, **fits})
        assert (output_layer(model).weight is embeddings(model)[1].weight) == one
    if not name.startswith("xu2015"):  # whose output reads vectors as wide as a word's, whatever that is
        with pytest.raises(UserError, match="make the two equal"):
            raw(name, {"model.tie": True, "model.embedding": 5, **fits})


def initialisation(name: str) -> None:
    reach = {"luong": 0.1, "sutskever": 0.08}.get(RECIPES[name]["model"]["kind"])
    for chosen in ("paper", "torch"):
        model = raw(name, {"model.initialisation": chosen})
        if reach is not None:
            largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
            assert (0.9 * reach < largest <= 1.001 * reach) == (chosen == "paper")
            continue
        gate = model.decoder.recurrent.forwards[0].weight_hh[:SIZE]
        assert torch.allclose(gate @ gate.T, torch.eye(SIZE), atol=1e-5) == (chosen == "paper")
        assert (not model.decoder.recurrent.forwards[0].bias_hh.any()) == (chosen == "paper")


def attention(name: str) -> None:
    for chosen, width in ((5, 5), (None, SIZE)):
        assert raw(name, {"model.attention": chosen}).decoder.attention.score.v.shape == (width,)


def maxout(name: str) -> None:
    for chosen, width in ((5, 5), (None, SIZE // 2)):
        output = raw(name, {"model.maxout": chosen}).decoder.output
        assert (output.W_o.in_features, output.U_o.out_features) == (width, 2 * width)


def readout(name: str) -> None:
    """Only the state after a step depends on the decoder's own cells."""
    for chosen in ("previous", "current"):
        model = made(name, {"model.readout": chosen})
        before = decoded(model).logits[:, 0].clone()
        with torch.no_grad():
            model.decoder.recurrent.forwards[0].weight_ih.mul_(-1.0)
        assert torch.equal(decoded(model).logits[:, 0], before) == (chosen == "previous")


def heads(name: str) -> None:
    for chosen in (1, 4):
        model = raw(name, {"model.heads": chosen})
        found: list[Tensor] = []
        model.decoder.layers[0].register_forward_hook(lambda m, given, out, found=found: found.append(out[2].weights))
        decoded(model)
        assert found[0].shape == (B, chosen, T, S)
        assert model.encoder.layers[0].attention.heads == chosen
    with pytest.raises(UserError, match="3 heads, size 8"):
        raw(name, {"model.heads": 3})


def feedforward(name: str) -> None:
    for chosen, width in ((5, 5), (None, 4 * SIZE)):
        for stack in stacks(raw(name, {"model.feedforward": chosen})):
            assert stack[0].feedforward[0].out_features == width


def norm(name: str) -> None:
    x, mask = torch.randn(B, S, SIZE, dtype=torch.float64), prefix_mask(LENGTHS, S)
    for chosen in ("post", "pre"):
        layer = made(name, {"model.norm": chosen}).encoder.layers[0]
        first, second = layer.around_attention.norm, layer.around_feedforward.norm

        def attend(y: Tensor, layer: Any = layer) -> Tensor:
            projected = layer.attention.project(y, y)
            context: Tensor = layer.attention.attend(y, projected, mask).context
            return context

        if chosen == "post":
            y = first(x + attend(x))
            expected = second(y + layer.feedforward(y))
        else:
            y = x + attend(first(x))
            expected = y + layer.feedforward(second(y))
        close(layer(x, mask), expected)


def positions(name: str) -> None:
    """What two words give that change places: the same where nothing says where a word stands, and only there."""
    source = torch.tensor([[4, 5, 6, 7]])
    for chosen, blind in (("sinusoidal", False), ("learned", False), ("none", True)):
        encoder = made(name, {"model.positions": chosen}).encoder
        read, turned = (encoder(ids, torch.tensor([4])).memory.keys[0] for ids in (source, source.flip(1)))
        assert torch.allclose(read.flip(0), turned) == blind, chosen


def max_positions(name: str) -> None:
    """Words past the last place that is known stand where it is."""
    source = torch.tensor([[4, 5, 5, 5]])
    for known, alike in ((2, True), (4, False)):
        embedded = made(name, {"model.positions": "learned", "model.max_positions": known}).encoder.embedding(source)[0]
        assert torch.equal(embedded[1], embedded[3]) == alike
    with pytest.raises(UserError, match="max_positions"):
        raw(name, {"model.max_positions": 0})


def watched_heads(name: str, changes: Mapping[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """What a step gives out as alignment, B,S, and the heads of each layer, B,heads,S."""
    model = made(name, {"model.layers": 3, **changes})
    found: list[Tensor] = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda m, given, out: found.append(out[2].weights[:, :, 0]))
    _, _, attended = model.decoder.step(model.decoder.start(model.encode(*batch()[:2])), batch()[2][:, 0])
    return attended.weights[:, 0], found


def align_layer(name: str) -> None:
    for chosen, place in ((1, 0), (2, 1), (None, 2)):
        given, found = watched_heads(name, {"model.align_layer": chosen})
        close(given, found[place].mean(1))
        assert not any(torch.allclose(given, other.mean(1)) for number, other in enumerate(found) if number != place)


def align_head(name: str) -> None:
    for chosen in (1, 2, None):
        given, found = watched_heads(name, {"model.align_head": chosen})
        close(given, found[-1].mean(1) if chosen is None else found[-1][:, chosen - 1])


def align_after(name: str) -> None:
    for chosen in (False, True):
        assert made(name, {"model.align_after": chosen}).decoder.viewpoint.after == chosen


def input_feeding(name: str) -> None:
    for chosen in (True, False):
        model = made(name, {"model.input_feeding": chosen})
        state = model.decoder.start(model.encode(*batch()[:2]))
        other = state._replace(fed=torch.ones_like(state.fed))
        after, fed_other = (model.decoder.step(each, batch()[2][:, 0])[1] for each in (state, other))
        same = torch.equal(hidden(after.recurrent[0]), hidden(fed_other.recurrent[0]))
        assert same != chosen


def key_value(name: str) -> None:
    for chosen, width in (("split", SIZE // 2), ("separate", SIZE)):
        model = made(name, {"model.key_value": chosen})
        memory = model.encode(*batch()[:2]).memory
        assert (memory.keys.shape[-1], memory.values.shape[-1]) == (width, width)
        assert model.encoder.project.out_features == 2 * width
        assert not torch.equal(memory.keys, memory.values)


def gate(name: str) -> None:
    """A closed gate lets nothing of the values through."""
    for chosen in (True, False):
        model = made(name, {"model.gate": chosen})
        if chosen:
            assert model.decoder.gate.weight.shape == (1, SIZE)
            nn.init.zeros_(model.decoder.gate.weight)
            nn.init.constant_(model.decoder.gate.bias, -800.0)
        state = model.decoder.start(model.encode(*batch()[:2]))
        other = state._replace(memory=state.memory._replace(values=torch.ones_like(state.memory.values)))
        found, with_other = (model.decoder.step(each, batch()[2][:, 0])[0] for each in (state, other))
        assert torch.allclose(found, with_other) == chosen


def hard_loss(name: str, changes: Mapping[str, Any], seed: int = 0) -> tuple[float, Any]:
    """The loss of hard attention in training, and the model, whose gradients are those of this loss."""
    model = made(name, changes).train()
    torch.manual_seed(seed)
    loss = model.loss(*batch())
    loss.backward()
    return loss.item(), model


def score_gradient(model: Any) -> Tensor:
    gradient: Tensor = model.decoder.attention.score.v.grad
    return gradient


def estimator(name: str) -> None:
    hard = {"model.soft_share": 0.0}
    for chosen in ("reinforce", "soft-baseline", "marginal"):
        drawn = [hard_loss(name, {**hard, "model.estimator": chosen}, seed) for seed in (1, 2, 3)]
        assert (len({loss for loss, _ in drawn}) == 1) == (chosen == "marginal"), "which is exact, and draws nothing"
        assert bool(drawn[0][1].baseline) == (chosen == "reinforce"), "whose baseline moves"


def decode(name: str) -> None:
    for chosen in ("argmax", "marginal"):
        model = made(name, {"model.decode": chosen})
        log_probs, _, attended = model.decoder.step(model.decoder.start(model.encode(*batch()[:2])), batch()[2][:, 0])
        likeliest = F.one_hot(attended.probabilities.argmax(-1), S).double()
        close(attended.weights, likeliest if chosen == "argmax" else attended.probabilities)
        close(log_probs.exp().sum(-1), torch.ones(B, dtype=torch.float64))


def soft_share(name: str) -> None:
    many = (sources()[:1].expand(400, -1), LENGTHS[:1].expand(400))
    for chosen in (0.0, 0.25, 1.0):
        model = made(name, {"model.soft_share": chosen}).train()
        torch.manual_seed(0)
        state = model.decoder.start(model.encode(*many))
        weights = model.decoder.look(state).weights[:, 0]
        drawn = (weights.max(-1).values == 1.0).double().mean().item()
        assert drawn == pytest.approx(1 - chosen, abs=0.05 if 0 < chosen < 1 else 0.0)


def reward(name: str) -> None:
    """A place that was drawn passes no gradient to what it was drawn from; the reward alone does."""
    fixed = {"model.soft_share": 0.0, "model.entropy": 0.0}
    for chosen in ("reinforce", "soft-baseline"):
        found = [
            score_gradient(hard_loss(name, {**fixed, "model.estimator": chosen, "model.reward": weight})[1])
            for weight in (0.0, 0.1, 0.3)
        ]
        assert not found[0].any()
        assert found[1].any()
        close(found[2], 3 * found[1])


def entropy(name: str) -> None:
    fixed = {"model.soft_share": 0.0, "model.reward": 0.0}
    for chosen in ("reinforce", "soft-baseline"):
        (plain, model), (rewarded, _) = (
            hard_loss(name, {**fixed, "model.estimator": chosen, "model.entropy": weight}) for weight in (0.0, 0.3)
        )
        torch.manual_seed(0)
        p = decoded(model).attended.probabilities
        spread = -torch.xlogy(p, p).sum(-1)[real()].sum().item() / count(model)
        assert plain - rewarded == pytest.approx(0.3 * spread, rel=1e-9)


def doubly_stochastic(name: str) -> None:
    losses = [made(name, {"model.doubly_stochastic": weight}).loss(*batch()).item() for weight in (0.0, 1.0, 2.5)]
    weights = looks(made(name)) * real()[..., None]
    overlooked = (((1 - weights.sum(1)) ** 2) * prefix_mask(LENGTHS, S)).sum().item()
    for weight, loss in zip((1.0, 2.5), losses[1:], strict=True):
        assert loss - losses[0] == pytest.approx(weight * overlooked / count(made(name)), rel=1e-9)


# What is minimised.


def label_smoothing(name: str) -> None:
    plain, smooth = (made(name, {"loss.label_smoothing": share}) for share in (0.0, 0.3))
    log_probs = decoded(plain).logits.log_softmax(-1)
    out = batch()[3]
    moved = log_probs.gather(-1, out[..., None])[..., 0] - log_probs.mean(-1)
    expected = 0.3 * moved[real()].sum() / count(plain)
    close(smooth.loss(*batch()) - plain.loss(*batch()), expected)


def per(name: str) -> None:
    token, sentence = (made(name, {"loss.per": what}).loss(*batch()) for what in ("token", "sentence"))
    close(token * int(real().sum()), sentence * B)


def guided(name: str) -> None:
    generator = torch.Generator().manual_seed(8)
    guide = torch.rand(B, T, S, generator=generator, dtype=torch.float64)
    guide = (guide * (guide > 0.7)) * prefix_mask(LENGTHS, S)[:, None]
    plain, led = (made(name, {"loss.guided": weight}) for weight in (0.0, 0.4))
    if name in BLIND:
        with pytest.raises(UserError, match="a model without attention cannot be guided"):
            led.loss(*batch(), guide)
        return
    expected = -0.4 * torch.xlogy(guide, looks(plain).clamp(min=1e-9)).sum() / count(plain)
    close(led.loss(*batch(), guide) - plain.loss(*batch()), expected)


def r_drop(name: str) -> None:
    found: dict[float, tuple[float, Tensor]] = {}
    for weight in (0.0, 1.0, 3.0):
        model = made(name, {"loss.r_drop": weight, "model.dropout": 0.4}).train()
        logits: list[Tensor] = []
        model.decoder.register_forward_hook(lambda m, given, out, logits=logits: logits.append(out.logits))
        torch.manual_seed(0)
        found[weight] = model.loss(*batch()).item(), logits[0]
    assert [len(logits) for _, logits in found.values()] == [B, 2 * B, 2 * B], "one pass, or two"
    p, q = found[1.0][1].log_softmax(-1).chunk(2)
    both = F.kl_div(p, q, reduction="none", log_target=True) + F.kl_div(q, p, reduction="none", log_target=True)
    apart = both.sum(-1)[real()].sum().item()
    assert apart > 0
    assert found[3.0][0] - found[1.0][0] == pytest.approx((3 - 1) / 4 * apart / count(model), rel=1e-5)


MODELS: dict[str, Callable[[str], None]] = {
    "model.kind": kind,
    "model.size": size,
    "model.embedding": embedding,
    "model.layers": layers,
    "model.dropout": dropout,
    "model.residual": residual,
    "model.cell": cell,
    "model.bidirectional": bidirectional,
    "model.reverse": reverse,
    "model.score": score,
    "model.alignment": alignment,
    "model.window": window,
    "model.coverage": coverage,
    "model.coverage_size": coverage_size,
    "model.fertility": fertility,
    "model.max_source": max_source,
    "model.tie": tie,
    "model.initialisation": initialisation,
    "model.attention": attention,
    "model.maxout": maxout,
    "model.readout": readout,
    "model.heads": heads,
    "model.feedforward": feedforward,
    "model.norm": norm,
    "model.positions": positions,
    "model.max_positions": max_positions,
    "model.align_layer": align_layer,
    "model.align_head": align_head,
    "model.align_after": align_after,
    "model.input_feeding": input_feeding,
    "model.key_value": key_value,
    "model.gate": gate,
    "model.estimator": estimator,
    "model.decode": decode,
    "model.soft_share": soft_share,
    "model.reward": reward,
    "model.entropy": entropy,
    "model.doubly_stochastic": doubly_stochastic,
    "loss.label_smoothing": label_smoothing,
    "loss.per": per,
    "loss.guided": guided,
    "loss.r_drop": r_drop,
}


# Runs: from a recipe and files to a trainer, and from there to what it leaves.


class Bench:
    """A corpus, a folder to work in, and trainers."""

    def __init__(self, corpus: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.corpus = corpus
        self.folder = folder
        self.patch = patch
        self.made = 0

    def place(self) -> Path:
        """A new folder."""
        self.made += 1
        place = self.folder / str(self.made)
        place.mkdir()
        return place

    def wired(
        self,
        changes: Mapping[str, Any] = {},
        data: Sequence[Path] | None = None,
        recipe: str = "bahdanau2015",
    ) -> Any:
        """The trainer that `train` makes of a recipe and files, before its first update."""
        caught: list[Trainer] = []
        with self.patch.context() as patch:
            patch.setattr(Trainer, "fit", lambda trainer: caught.append(trainer))
            named = {} if "data.train" in changes else {"data": data or corpus_files(self.corpus, "train")}
            train(recipe, named.get("data"), self.place() / "run", **{**TINY, "model.size": 8, **changes})
        return caught[0]

    def job(self, bleus: list[float] | None = None, **settings: Any) -> Any:
        """A tiny trainer; what it validates to is told it."""
        return make_trainer(self.place(), bleus, **settings)

    def ordered(self, **settings: Any) -> Any:
        """The order that a trainer follows through some hundred examples."""
        job = self.job()
        chosen = TrainingSettings(**{"batch_tokens": 40, **settings})
        return Trainer(job.model, make_examples(400), job.validate, chosen, job.run, CPU).order

    def tokenizers(self, **text: Any) -> Any:
        """Those that a recipe with this `text` section has, also of a validator."""
        return self.wired({f"text.{key}": value for key, value in text.items()}).validate.tokenizers

    def lines(self, split: str, side: str) -> list[str]:
        return (self.corpus / f"{split}.{side}").read_text(encoding="utf-8").splitlines()


def text_kind(bench: Bench) -> None:
    line = "The children"
    for chosen in ("bpe", "unigram", "word", "char"):
        target, source = bench.tokenizers(kind=chosen, vocabulary=400, shared=True)
        written = source.pieces(range(source.size))
        assert isinstance(source, Words if chosen == "word" else Subwords)
        assert target is source
        if chosen == "word":
            assert source.pieces(source.encode(line)) == line.split()
            assert source.encode("Zyzzyva") == [UNK], "a rare one"
        elif chosen == "char":
            assert max(map(len, written[4:])) == 1
        else:
            scores = [source.processor.get_score(id) for id in range(source.size)]
            ranks = all(score == int(score) for score in scores)  # merges have a rank, unigram pieces a likelihood
            assert ranks == (chosen == "bpe")
            assert max(map(len, written[4:])) > 1


def vocabulary(bench: Bench) -> None:
    for chosen in (50, 90):
        for tokenizer in bench.tokenizers(kind="word", shared=False, vocabulary=chosen):
            assert tokenizer.size == chosen
    for tokenizer in bench.tokenizers(kind="bpe", shared=True, vocabulary=330):
        assert tokenizer.size <= 330


def shared(bench: Bench) -> None:
    for chosen in (True, False):
        source, target = bench.tokenizers(kind="word", shared=chosen)
        assert (source is target) == chosen
        assert ("Kinder" in source.vocabulary) == chosen
        found = {path.name for path in (bench.folder / str(bench.made) / "run" / "tokenizer").iterdir()}
        assert found == ({"shared.vocab"} if chosen else {"source.vocab", "target.vocab"})


def byte_fallback(bench: Bench) -> None:
    for sort in ("bpe", "unigram"):
        for chosen in (True, False):
            source = bench.tokenizers(kind=sort, vocabulary=400, shared=True, byte_fallback=chosen).source
            assert (UNK in source.encode("a ☃ b")) != chosen
            assert (source.decode(source.encode("a ☃ b")) == "a ☃ b") == chosen


def lowercase(bench: Bench) -> None:
    for sort in ("word", "bpe"):
        for chosen in (True, False):
            source = bench.tokenizers(kind=sort, vocabulary=400, shared=True, lowercase=chosen).source
            assert (source.encode("The Children") == source.encode("the children")) == chosen


def merges(bench: Bench) -> None:
    rows = np.arange(40)
    changes = {"text.kind": "bpe", "text.vocabulary": 400, "text.shared": True}
    lengths = []
    for chosen in (0.0, 0.2, 0.8):
        job = bench.wired({**changes, "text.dropout": chosen})
        first, again, other = (job.source.batch(rows, seed) for seed in (1, 1, 2))
        assert torch.equal(first.source, again.source)
        assert (first.source.shape == other.source.shape and torch.equal(first.source, other.source)) == (chosen == 0)
        assert [job.validate.tokenizers.source.decode(ids) for ids in first.source.tolist()] == [
            job.validate.tokenizers.source.decode(ids) for ids in other.source.tolist()
        ], "the text is the same, however it is cut"
        lengths.append(int(first.lengths.sum()))
    assert lengths == sorted(set(lengths)), "the less is merged, the more there are"


def data_train(bench: Bench) -> None:
    named = [str(path) for path in corpus_files(bench.corpus, "test")]
    dev = {"data.dev": [str(path) for path in corpus_files(bench.corpus, "dev")]}
    assert len(bench.wired({"data.train": named, **dev}).source) == 30
    assert len(bench.wired(dev, corpus_files(bench.corpus, "train")).source) == 300
    recipe = override(read("bahdanau2015"), {"data.train": named, **dev, **TINY})
    caught: list[Trainer] = []
    bench.patch.setattr(Trainer, "fit", lambda trainer: caught.append(trainer))
    train(recipe, None, bench.place() / "recipe")
    train(recipe, corpus_files(bench.corpus, "train"), bench.place() / "named")
    assert [len(job.source) for job in caught] == [30, 300], "what is named on the command line counts instead"  # type: ignore[arg-type]


def data_dev(bench: Bench) -> None:
    dev = [str(path) for path in corpus_files(bench.corpus, "dev")]
    given, held = bench.wired({"data.dev": dev}), bench.wired({"data.dev": None})
    assert given.validate.pairs == pairs(corpus_files(bench.corpus, "dev"))
    everything = pairs(corpus_files(bench.corpus, "train"))
    assert len(given.source) == len(everything)
    assert set(held.validate.pairs) < set(everything)
    assert len(held.source) + len(held.validate.pairs) == len(everything), "held out of what is trained on"


def two_corpora(bench: Bench) -> list[Path]:
    return [*corpus_files(bench.corpus, "train"), *corpus_files(bench.corpus, "test")]


def weights(bench: Bench) -> None:
    dev = {"data.dev": [str(path) for path in corpus_files(bench.corpus, "dev")]}
    for chosen, first, second in (([2, 0.5], 2, 15), ([0.0, 3.0], 0, 90), (None, 1, 30)):
        order = bench.wired({"data.weights": chosen, **dev}, two_corpora(bench)).order
        for epoch in (0, 1):
            times = np.bincount(order.rows(epoch), minlength=330)
            assert (times[:300] == first).all()
            assert times[300:].sum() == second


def tags(bench: Bench) -> None:
    dev = {"data.dev": [str(path) for path in corpus_files(bench.corpus, "dev")]}
    for chosen in (None, [None, "bt"], ["web", "bt"]):
        job = bench.wired({"data.tags": chosen, **dev}, two_corpora(bench))
        source = job.validate.tokenizers.source
        for rows, tag in ((range(300), (chosen or [None])[0]), (range(300, 330), (chosen or [None])[-1])):
            firsts = {int(job.source.source[row][0]) for row in rows}
            if tag is None:
                assert not any(source.is_tag(first) for first in firsts)
            else:
                assert firsts == {source.tag(tag)}


def alignments(bench: Bench) -> None:
    dev = {"data.dev": [str(path) for path in corpus_files(bench.corpus, "dev")], "text.vocabulary": 5000}
    links = {"data.alignments": str(bench.corpus / "train.align")}
    assert bench.wired({**dev, **links}).source.batch(np.arange(5)).guide is None, "which loss.guided asks for"
    guide = bench.wired({**dev, **links, "loss.guided": 0.5}).source.batch(np.arange(40)).guide
    gold = read_gold(bench.corpus / "train.align", pairs(corpus_files(bench.corpus, "train")))
    checked = 0
    for row, (source, target) in enumerate(pairs(corpus_files(bench.corpus, "train"))[:40]):
        whole = [all(part.isalpha() for part in text.rstrip(".?!").split()) for text in (source, target)]
        if not all(whole) or source[-1].isalpha() or target[-1].isalpha():
            continue  # of the rest, word number i is token number i, and the last word has its mark beside it
        checked += 1
        linked = {(s, t) for t, s in (guide[row] > 0).nonzero().tolist()}
        words = len(source.split()), len(target.split())
        expected = {(s, t) for s, t in linked if s < words[0] and t < words[1]}
        assert expected == gold[row].possible
        sums = guide[row].sum(1)
        assert all(float(one) == pytest.approx(1.0) for one in sums[sums > 0])
    assert checked > 20


def language(side: str) -> Callable[[Bench], None]:
    def shown(bench: Bench) -> None:
        for chosen, found in ((None, {"source": "en", "target": "de"}[side]), ("xx", "xx")):
            job = bench.wired({f"data.{side}": chosen})
            assert job.run.config()["data"][side] == found

    return shown


def max_length(bench: Bench) -> None:
    sizes = [
        max(len(source), len(target))
        for source, target in zip(*two_sides(bench.wired({"data.max_length": 100}).source), strict=True)
    ]
    for chosen in (8, 10):
        job = bench.wired(
            {"data.max_length": chosen, "data.dev": [str(path) for path in corpus_files(bench.corpus, "dev")]}
        )
        assert max(max(map(len, side)) for side in two_sides(job.source)) == chosen
        assert len(job.source) < 300
        assert job.run.config()["data"]["max_length"] == chosen
    assert max(sizes) > 10


def longest(bench: Bench) -> None:
    sizes = [len(ids) for side in two_sides(bench.wired({}).source) for ids in side]
    for chosen, found in ((None, max(sizes)), (5, 5)):
        job = bench.wired({"data.longest": chosen})
        assert job.run.config()["data"]["longest"] == found
        assert len(job.source) == len(sizes) // 2, "as much is trained on"


def sentences(bench: Bench) -> None:
    lines = [bench.lines("train", side) for side in ("en", "de")]
    doubled = [bench.place() / f"doubled.{side}" for side in ("en", "de")]
    for path, some in zip(doubled, lines, strict=True):
        several = [f"{some[number]} {some[-1]}" if number % 2 else line for number, line in enumerate(some)]
        path.write_text("\n".join(several) + "\n", encoding="utf-8")
    for data, chosen, found in ((None, None, 1), (doubled, None, 2), (doubled, 1, 1)):
        assert bench.wired({"data.sentences": chosen}, data).run.config()["data"]["sentences"] == found


def two_sides(source: Examples) -> list[list[list[int]]]:
    return [[list(side[row]) for row in range(len(side))] for side in (source.source, source.target)]


def dev_pairs(bench: Bench) -> None:
    for chosen, held in ((7, 7), (20, 20), (1000, 30)):
        assert len(bench.wired({"data.dev_pairs": chosen}).validate.pairs) == held, "at most a tenth"


class Watched(Examples):
    """Examples that leave a file for each process that reads them, and may never answer."""

    def __init__(self, folder: Path, hangs: bool = False) -> None:
        whole = make_examples()
        super().__init__(whole.source, whole.target)
        self.folder = folder
        self.hangs = hangs

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        (self.folder / str(os.getpid())).touch()
        if self.hangs:
            signal.pause()
        return super().batch(rows, seed)


def reading(bench: Bench, source: Watched, **data: Any) -> Any:
    job = bench.job()
    settings = TrainingSettings(steps=6, batch_tokens=40, tensorboard=False, validate_every=9)
    return Trainer(job.model, source, job.validate, settings, job.run, CPU, DataSettings(**data))


def workers(bench: Bench) -> None:
    ends = []
    for chosen in (0, 2):
        seen = bench.place()
        job = reading(bench, Watched(seen), workers=chosen)
        job.fit()
        found = {int(path.name) for path in seen.iterdir()}
        assert (found == {os.getpid()}) == (chosen == 0)
        assert len(found) == max(1, chosen)
        ends.append(job.model.state_dict())
    assert state_dicts_equal(*ends), "they change nothing but the speed"


def timeout(bench: Bench) -> None:
    job = reading(bench, Watched(bench.place(), hangs=True), workers=1, timeout=1)
    with pytest.raises(UserError, match=r"reading training data came to a stop: .*after 1 seconds"):
        job.fit()


def steps(bench: Bench) -> None:
    for chosen in (3, 5):
        assert bench.job(steps=chosen).fit().step == chosen


def epochs(bench: Bench) -> None:
    for chosen in (1.0, 2.5):
        job = bench.job(steps=None, epochs=chosen, validate_every=99, log_every=1)
        assert job.order.epochs(job.fit().place) >= chosen
        begun = [row["epoch"] for row in job.run.metrics() if row["kind"] == "train"]
        assert begun[0] == 0.0
        assert all(epoch < chosen for epoch in begun), "and no update more"


def batch_tokens(bench: Bench) -> None:
    for chosen in (40, 90):
        order = bench.ordered(batch_tokens=chosen)
        taken = [len(rows) * int(order.sizes[rows].max()) for rows, _ in islice(order.after(Place()), 60)]
        assert 0.8 * chosen < max(taken) <= chosen


def accumulate(bench: Bench) -> None:
    batches = [rows.tolist() for rows, _ in islice(bench.job().order.after(Place()), 6)]
    for chosen in (1, 3):
        job = bench.job(accumulate=chosen, optimizer="sgd", learning_rate=1.0, warmup=0, clip=None, steps=1)
        share = next(job.shares())
        assert len(share.batches) == chosen
        together = job.source.batch(np.concatenate(batches[:chosen]), 0)
        job.model.loss(*together).backward()
        expected = [weight.detach() - weight.grad for weight in job.model.parameters()]
        job.model.zero_grad()
        job.fit()
        for weight, one in zip(job.model.parameters(), expected, strict=True):
            torch.testing.assert_close(weight.detach(), one)


def pool(bench: Bench) -> None:
    padding = []
    for chosen in (1, 4, 40):
        order = bench.ordered(pool=chosen)
        assert order.in_pool == int(chosen * 40 / order.sizes.mean())
        rows = [rows for rows, place in islice(order.after(Place()), 99) if place.epoch == 0]
        padding.append(sum(int((order.sizes[some].max() - order.sizes[some]).sum()) for some in rows))
    assert padding == sorted(padding, reverse=True), "the more is sorted together, the less is padded"
    assert padding[0] > 2 * padding[-1]


def curriculum(bench: Bench) -> None:
    for chosen in (0, 1, 2):
        order = bench.ordered(curriculum=chosen)
        for epoch in range(3):
            quarters = np.array_split(order.sizes[order.rows(epoch)], 4)
            late = quarters[-1].mean() - quarters[0].mean()
            assert (late > 0.8) == (epoch < chosen)


def one_step(updates: int = 1, **settings: Any) -> tuple[float, Tensor]:
    """A weight of 2 after updates with the gradients 0.5, −1, 0.25 …"""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    made = optimizer(module, TrainingSettings(**{"learning_rate": 0.1, **settings}))
    for gradient in (0.5, -1.0, 0.25)[:updates]:
        module.weight.grad = torch.tensor([[gradient]])
        made.step()
    return float(module.weight.detach()), module.weight


def by_adam(updates: int, b1: float, b2: float, epsilon: float, decay: float = 0.0, apart: bool = False) -> float:
    w, m, v = 2.0, 0.0, 0.0
    for t, g in enumerate((0.5, -1.0, 0.25)[:updates], 1):
        w, g = (w * (1 - 0.1 * decay), g) if apart else (w, g + decay * w)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w -= 0.1 * (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + epsilon)
    return w


def which_optimizer(bench: Bench) -> None:
    sorts = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "adadelta": torch.optim.Adadelta,
    }
    for chosen, sort in sorts.items():
        assert type(bench.job(optimizer=chosen).optimizer) is sort


def rates(bench: Bench, **settings: Any) -> list[float]:
    """The learning rate of each update of a run."""
    job = bench.job(**{"log_every": 1, "validate_every": 99, "schedule": "constant", "warmup": 0, **settings})
    job.fit()
    return [row["learning_rate"] for row in job.run.metrics() if row["kind"] == "train"]


def rate(bench: Bench) -> None:
    for chosen in (0.1, 0.3):
        assert rates(bench, steps=2, learning_rate=chosen) == [chosen, chosen]
        multiplied = rates(bench, steps=9, learning_rate=chosen, warmup=3, schedule="inverse-sqrt")
        assert max(multiplied) == chosen
        assert multiplied[-1] == pytest.approx(chosen * math.sqrt(3 / 9))
        job = bench.job(learning_rate=chosen, optimizer="sgd", warmup=0, schedule="constant", clip=1e-3, steps=1)
        before = [weight.detach().clone() for weight in job.model.parameters()]
        job.fit()
        moved = [weight.detach() - old for weight, old in zip(job.model.parameters(), before, strict=True)]
        assert float(torch.cat([one.flatten() for one in moved]).norm()) == pytest.approx(chosen * 1e-3, rel=1e-2)


def betas(bench: Bench) -> None:
    for sort in ("adam", "adamw"):
        for chosen in ((0.9, 0.98), (0.5, 0.7)):
            found, _ = one_step(3, optimizer=sort, betas=chosen, epsilon=1e-8)
            assert found == pytest.approx(by_adam(3, *chosen, 1e-8), rel=1e-6)


def epsilon(bench: Bench) -> None:
    for chosen in (1e-8, 0.5):
        for sort in ("adam", "adamw"):
            found, _ = one_step(1, optimizer=sort, betas=(0.9, 0.98), epsilon=chosen)
            assert found == pytest.approx(2 - 0.1 * 0.5 / (0.5 + chosen), rel=1e-6)
        found, _ = one_step(1, optimizer="adadelta", epsilon=chosen)
        by_hand = math.sqrt(chosen) / math.sqrt(0.05 * 0.5**2 + chosen) * 0.5
        assert found == pytest.approx(2 - 0.1 * by_hand, rel=1e-6)


def weight_decay(bench: Bench) -> None:
    for chosen in (0.0, 0.2):
        settings = {"betas": (0.9, 0.98), "epsilon": 1e-8, "weight_decay": chosen}
        expected = {sort: by_adam(3, 0.9, 0.98, 1e-8, chosen, sort == "adamw") for sort in ("adam", "adamw")}
        for sort, by_hand in expected.items():
            assert one_step(3, optimizer=sort, **settings)[0] == pytest.approx(by_hand, rel=1e-6)
        assert one_step(1, optimizer="sgd", **settings)[0] == pytest.approx(2 - 0.1 * (0.5 + 2 * chosen), rel=1e-6)
        g = 0.5 + 2 * chosen
        by_hand = math.sqrt(1e-8) / math.sqrt(0.05 * g * g + 1e-8) * g
        assert one_step(1, optimizer="adadelta", **settings)[0] == pytest.approx(2 - 0.1 * by_hand, rel=1e-6)


def schedule(bench: Bench) -> None:
    common = {"steps": 6, "learning_rate": 1e-3, "warmup": 2, "halve_after": 0.0, "halve_every": 99.0}
    shares = {
        "constant": [0.5, 1, 1, 1, 1, 1],
        "inverse-sqrt": [0.5, *(math.sqrt(2 / step) for step in range(2, 7))],
        "halving": [0.25, 0.5, 0.5, 0.5, 0.5, 0.5],
        "cosine": [0.5, *((1 + math.cos(math.pi * (step - 2) / 4)) / 2 for step in range(2, 7))],
    }
    for chosen, expected in shares.items():
        found = rates(bench, **common, schedule=chosen)
        assert found == pytest.approx([1e-3 * share for share in expected], abs=1e-12)


def warmup(bench: Bench) -> None:
    for chosen in (0, 4):
        rising = [min(1.0, step / chosen) if chosen else 1.0 for step in range(1, 7)]
        assert rates(bench, steps=6, learning_rate=0.01, warmup=chosen) == pytest.approx([0.01 * r for r in rising])


def halvings(bench: Bench, after: float, every: float) -> list[tuple[float, float]]:
    """How far each update was, in epochs, and its share of the learning rate."""
    halving: dict[str, Any] = {"schedule": "halving", "halve_after": after, "halve_every": every, "warmup": 0}
    job = bench.job(**halving, learning_rate=0.01, steps=None, epochs=4.0, log_every=1, validate_every=99)
    job.fit()
    rows = [row for row in job.run.metrics() if row["kind"] == "train"]
    return [(row["epoch"], row["learning_rate"] / 0.01) for row in rows]


def halve_after(bench: Bench) -> None:
    for chosen in (1.0, 2.5):
        for epoch, share in halvings(bench, chosen, 99.0):
            assert share == pytest.approx(1.0 if epoch < chosen else 0.5)


def halve_every(bench: Bench) -> None:
    for chosen in (0.5, 1.0):
        for epoch, share in halvings(bench, 1.0, chosen):
            assert share == pytest.approx(1.0 if epoch < 1 else 0.5 ** (1 + math.floor((epoch - 1) / chosen)))


def clip(bench: Bench) -> None:
    norms = {}
    for chosen in (None, 0.01, 1e6):
        job = bench.job(clip=chosen)
        found = gradients_of(job)
        found.add(next(job.shares()).batches, 1, 1)
        before = float(found.clip(job.optimizer))
        norms[chosen] = float(torch.stack([weight.grad.norm() for weight in job.model.parameters()]).norm())
    assert norms[0.01] == pytest.approx(0.01, rel=1e-3)
    assert norms[None] == pytest.approx(before, rel=1e-6)
    assert norms[1e6] == pytest.approx(before, rel=1e-6), "one that is shorter stays as it is"


def ema(bench: Bench) -> None:
    for chosen in (0.0, 0.15):
        job = bench.job(ema=chosen, steps=4, validate_every=4)
        mean = {name: weight.detach().clone() for name, weight in job.model.named_parameters()}
        update = job.update

        def noted(share: Any, job: Any = job, mean: dict[str, Tensor] = mean, update: Any = update) -> Any:
            made = update(share)
            kept = min(chosen, (1 + job.position.step) / (10 + job.position.step))  # noqa: B023 - read at once
            for name, weight in job.model.named_parameters():
                mean[name] = kept * mean[name] + (1 - kept) * weight.detach()
            return made

        job.update = noted
        job.fit()
        saved = checkpoint.read_tensors(job.run.checkpoint_folder(4), checkpoint.MODEL)
        for name, weight in job.model.named_parameters():
            torch.testing.assert_close(saved[name], mean[name])
            assert torch.equal(saved[name], weight.detach()) == (chosen == 0.0)


def average(bench: Bench) -> None:
    for chosen in (1, 2, 3):
        job = bench.job([1.0] * 9, average=chosen, keep=3, steps=6)
        job.fit()
        assert job.run.average_folder.exists() == (chosen > 1)
        if chosen > 1:
            newest = [job.run.checkpoint_folder(step) for step in (2, 4, 6)][-chosen:]
            each = [checkpoint.read_tensors(folder, checkpoint.MODEL) for folder in newest]
            for name, mean in checkpoint.read_tensors(job.run.average_folder, checkpoint.MODEL).items():
                torch.testing.assert_close(mean, sum(one[name] for one in each) / chosen)
    worse = bench.job([1.0, 2.0, 3.0, 0.5], average=2, keep=3, steps=6)
    worse.fit()
    assert not worse.run.average_folder.exists(), "only if that is better"


def validate_every(bench: Bench) -> None:
    for chosen, found in ((2, [2, 4, 6]), (3, [3, 6]), (5, [5, 6])):
        job = bench.job(validate_every=chosen, steps=6)
        job.fit()
        assert [row["step"] for row in job.run.metrics() if row["kind"] == "dev"] == found


def validate_pairs(bench: Bench) -> None:
    losses = []
    for chosen in (3, 17):
        job = bench.wired({"training.validate_pairs": chosen})
        validator = job.validate
        assert isinstance(validator, Validator)
        assert len(validator.translate(job.model, CPU)) == chosen
        losses.append(validator.loss(job.model, CPU))
    assert losses[0] == losses[1], "which is of all"


def best(bench: Bench) -> None:
    found = iter([Validation(loss, {"bleu": bleu}, "bleu") for loss, bleu in ((3.0, 1.0), (1.0, 2.0), (2.0, 9.0))] * 2)
    for chosen, step in (("bleu", 6), ("loss", 4)):
        job = bench.job(best=chosen, steps=6)
        job.validate = lambda *_: next(found)
        job.fit()
        assert job.run.best() == step


def patience(bench: Bench) -> None:
    falling = [9.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    for chosen, step in ((1, 4), (3, 8), (None, 12)):
        assert bench.job(falling, patience=chosen, steps=12).fit().step == step


def bad_updates(bench: Bench) -> None:
    for chosen in (2, 4):
        job = bench.job(bad_updates=chosen, steps=20)
        before = [weight.detach().clone() for weight in job.model.parameters()]
        make_loss_nan(job, set(range(1, 21)))
        with pytest.raises(UserError, match=f"at step {chosen} the loss is nan .* {chosen} updates in a row"):
            job.fit()
        assert all(torch.equal(old, new) for old, new in zip(before, job.model.parameters(), strict=True))


def checkpoint_every(bench: Bench) -> None:
    for chosen, found in ((2, [2, 4, 5, 6, 8]), (3, [3, 5, 6, 8]), (99, [5, 8])):
        job = bench.job(checkpoint_every=chosen, validate_every=5, keep=9, steps=8)
        job.fit()
        assert job.run.steps() == found, "one for each validation too"


def keep(bench: Bench) -> None:
    for chosen, found in ((1, [2, 8]), (2, [2, 6, 8]), (4, [2, 4, 6, 8])):
        job = bench.job([9.0, 1.0, 1.0, 1.0], keep=chosen, patience=None)
        job.fit()
        assert job.run.steps() == found, "and the best one"


def keep_best(bench: Bench) -> None:
    for chosen, found in ((1, [4, 10]), (2, [2, 4, 10]), (3, [2, 4, 8, 10])):
        job = bench.job([7.0, 9.0, 1.0, 5.0, 2.0], keep=1, keep_best=chosen, steps=10, patience=None)
        job.fit()
        assert job.run.steps() == found


def log_every(bench: Bench) -> None:
    for chosen, found in ((1, [1, 2, 3, 4, 5, 6]), (3, [3, 6])):
        job = bench.job(log_every=chosen, steps=6)
        job.fit()
        assert [row["step"] for row in job.run.metrics() if row["kind"] == "train"] == found


def tensorboard(bench: Bench) -> None:
    for chosen in (True, False):
        job = bench.job(tensorboard=chosen, steps=1)
        job.fit()
        assert bool(list((job.run.folder).glob("tensorboard/events*"))) == chosen


def precision(bench: Bench) -> None:
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    kinds |= dict.fromkeys(("auto", "mixed"), torch.float32)
    for chosen, sort in kinds.items():
        job = bench.job(precision=chosen)
        seen: list[torch.dtype] = []
        job.model.decoder.W_s.register_forward_hook(lambda m, given, out, seen=seen: seen.append(out.dtype))
        found = gradients_of(job)
        found.add(next(job.shares()).batches, 1, 1)
        assert set(seen) == {sort}
        assert found.scaler.is_enabled() == (chosen == "fp16")
        assert all(weight.grad.dtype == torch.float32 for weight in job.model.parameters())


def device(bench: Bench) -> None:
    for there in ((), ("mps",), ("cuda", "mps")):
        with bench.patch.context() as patch:
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
    job = bench.wired({"training.device": "cpu"})
    assert job.device.type == next(job.model.parameters()).device.type == "cpu"


def seed(bench: Bench) -> None:
    fixed = {"data.dev": [str(path) for path in corpus_files(bench.corpus, "dev")], "model.dropout": 0.3}
    jobs = [bench.wired({"training.seed": chosen, **fixed}) for chosen in (1, 1, 2)]
    first, again, other = (job.model.state_dict() for job in jobs)
    assert state_dicts_equal(first, again)
    assert not state_dicts_equal(first, other), "of weights"
    orders = [[rows.tolist() for rows, _ in islice(job.order.after(Place()), 5)] for job in jobs]
    assert orders[0] == orders[1] != orders[2], "of the order of the data"
    share = next(jobs[0].shares())
    found = []
    for job in jobs:
        job.model.load_state_dict(first)
        found.append(float(gradients_of(job).add(share.batches, 1, 1).loss))
    assert found[0] == found[1] != found[2], "and of dropout"


def init_from(bench: Bench) -> None:
    parent = train(
        "bahdanau2015", corpus_files(bench.corpus, "test"), bench.place() / "run", **{**TINY, "training.steps": 2}
    )
    child = bench.wired({"training.init_from": str(parent.folder), "model.size": 24, "training.seed": 5})
    assert state_dicts_equal(child.model.state_dict(), parent.model(parent.tokenizers().sizes).state_dict())
    theirs: Any = parent.tokenizers().source
    assert child.validate.tokenizers.source.vocabulary == theirs.vocabulary
    alone = bench.wired({"model.size": 24, "training.seed": 5})
    assert alone.validate.tokenizers.source.vocabulary != theirs.vocabulary


RUNS: dict[str, Callable[[Bench], None]] = {
    "text.kind": text_kind,
    "text.vocabulary": vocabulary,
    "text.shared": shared,
    "text.byte_fallback": byte_fallback,
    "text.lowercase": lowercase,
    "text.dropout": merges,
    "data.train": data_train,
    "data.dev": data_dev,
    "data.weights": weights,
    "data.tags": tags,
    "data.alignments": alignments,
    "data.source": language("source"),
    "data.target": language("target"),
    "data.max_length": max_length,
    "data.longest": longest,
    "data.sentences": sentences,
    "data.dev_pairs": dev_pairs,
    "data.workers": workers,
    "data.timeout": timeout,
    "training.steps": steps,
    "training.epochs": epochs,
    "training.batch_tokens": batch_tokens,
    "training.accumulate": accumulate,
    "training.pool": pool,
    "training.curriculum": curriculum,
    "training.optimizer": which_optimizer,
    "training.learning_rate": rate,
    "training.betas": betas,
    "training.epsilon": epsilon,
    "training.weight_decay": weight_decay,
    "training.schedule": schedule,
    "training.warmup": warmup,
    "training.halve_after": halve_after,
    "training.halve_every": halve_every,
    "training.clip": clip,
    "training.ema": ema,
    "training.average": average,
    "training.validate_every": validate_every,
    "training.validate_pairs": validate_pairs,
    "training.best": best,
    "training.patience": patience,
    "training.bad_updates": bad_updates,
    "training.checkpoint_every": checkpoint_every,
    "training.keep": keep,
    "training.keep_best": keep_best,
    "training.log_every": log_every,
    "training.tensorboard": tensorboard,
    "training.precision": precision,
    "training.device": device,
    "training.seed": seed,
    "training.init_from": init_from,
}
ELSEWHERE = {"training.shard": "tests/test_processes.py::test_shards_are_one_model"}


def keys(recipe: Mapping[str, Any]) -> set[str]:
    return {f"{section}.{key}" for section in SECTIONS for key in recipe[section]}


def test_every_key_of_every_recipe_is_shown_at_work() -> None:
    shown = [*MODELS, *RUNS, *ELSEWHERE]
    assert len(shown) == len(set(shown))
    assert set(shown) == set().union(*map(keys, RECIPES.values()))


def test_what_is_shown_elsewhere_is_there() -> None:
    root = Path(__file__).parent.parent
    for key in ELSEWHERE:
        path, _, name = ELSEWHERE[key].partition("::")
        assert f"def {name}(" in (root / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "name"), [(key, name) for key in MODELS for name, recipe in RECIPES.items() if key in keys(recipe)]
)
def test_what_a_key_of_the_model_changes(key: str, name: str) -> None:
    MODELS[key](name)


@pytest.mark.parametrize("key", RUNS)
def test_what_a_key_of_the_run_changes(key: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RUNS[key](Bench(corpus, tmp_path, monkeypatch))
