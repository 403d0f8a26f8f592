"""User-defined alignments, patched decoder methods, hooks and model kinds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from support.commands import Command
from torch import Tensor

from regard import nn
from regard.errors import UserError
from regard.fast import accelerate
from regard.models import MODELS, build
from regard.search import BeamSearch, Hypothesis, SearchOptions, score_targets, search
from regard.synthetic.translation import generate_corpus

ROOT = Path(__file__).parent.parent.parent
RECIPES = ["luong2015-global", "bahdanau2015", "xu2015-soft"]


class MonotonicPrior(torch.nn.Module):
    """Attention over the whole source, weighted by the distance from the target position."""

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[None, Tensor]:
        t, s = nn.position_ids(step, query.shape[1], query.device), torch.arange(mask.shape[1])
        return None, torch.exp(-(t[..., None] - s).abs().to(query.dtype))

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        assert prior is not None
        return nn.masked_softmax(scores, mask) * prior


class PredictedPrior(MonotonicPrior):
    """Attention weighted by the distance from a position that is computed from the query."""

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[None, Tensor]:
        centre = mask.sum(1, keepdim=True) * torch.sigmoid(20 * query.mean(-1))
        return None, torch.exp(-((torch.arange(mask.shape[1]) - centre[..., None]) ** 2) / 2)


def make_model(recipe: str, alignment: torch.nn.Module) -> Any:
    torch.manual_seed(0)
    model = build(recipe, 50, 50, size=16, layers=1, dropout=0.0).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.decoder.attention.alignment = alignment
    return model


@pytest.mark.parametrize("alignment", [MonotonicPrior, PredictedPrior])
@pytest.mark.parametrize("sources", [1, 3])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_prior_over_the_source_is_computed_per_hypothesis(
    recipe: str, sources: int, alignment: type[torch.nn.Module]
) -> None:
    model = make_model(recipe, alignment())
    source, lengths = torch.randint(5, 50, (sources, 7)), torch.tensor([7, 4, 6][:sources])
    for row, (found, *_) in enumerate(search(model, source, lengths, beam=4)):
        (given,) = score_targets(model, source[row : row + 1], lengths[row : row + 1], [found.tokens])
        assert found.log_prob == pytest.approx(sum(given.log_probs), abs=1e-4)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_prior_gets_the_step_of_sources_that_join_later(recipe: str) -> None:
    model = make_model(recipe, MonotonicPrior())
    first, second = torch.randint(5, 50, (1, 7)), torch.randint(5, 50, (1, 7))
    lengths, found = torch.tensor([7]), dict[int, list[Hypothesis]]()
    searching = BeamSearch(model, SearchOptions(beam=3))
    searching.add(first, lengths)
    searching.step()
    searching.add(second, lengths)
    while searching.num_active:
        found.update(searching.step())
    for number, source in enumerate((first, second)):
        (alone,) = search(model, source, lengths, beam=3)
        assert found[number][0].tokens == alone[0].tokens
        assert found[number][0].log_prob == pytest.approx(alone[0].log_prob, abs=1e-4)


def test_a_query_without_a_target_dimension_is_refused() -> None:
    states = torch.randn(2, 7, 16)
    memory = nn.Memory(states, states, nn.prefix_mask(torch.tensor([7, 4]), 7))
    with pytest.raises(ValueError, match=r"query must have shape \(B, T, Q\), not \(2, 16\)"):
        nn.Attention(nn.Dot(), nn.Global())(torch.randn(2, 16), memory)


@pytest.mark.parametrize(("recipe", "method"), [("luong2015-global", "attend"), ("default", "hidden_states")])
def test_a_patched_decoder_method_is_used_in_training(
    recipe: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = accelerate(build(recipe, 20, 20, size=16, layers=1, dropout=0.0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    source, lengths, target = torch.randint(4, 20, (3, 5)), torch.tensor([5, 4, 2]), torch.randint(4, 20, (3, 6))

    def loss() -> float:
        return float(model.loss_sum(source, lengths, target[:, :-1], target[:, 1:]).detach())

    plain, own = loss(), getattr(type(model.decoder), method)

    def silenced(self: Any, *given: Any) -> Any:
        first, *rest = own(self, *given)
        return first * 0, *rest

    monkeypatch.setattr(model.decoder, method, MethodType(silenced, model.decoder))
    patched = loss()
    monkeypatch.setenv("REGARD_FAST", "0")
    assert patched == pytest.approx(loss(), rel=1e-5)
    assert patched != pytest.approx(plain, rel=1e-3)


def test_forward_hooks_see_every_attention_of_a_transformer() -> None:
    model = build("vaswani2017-base", 20, 20, size=16, layers=2, heads=2, feedforward=16)
    called: list[str] = []
    for name, part in model.named_modules():
        if isinstance(part, nn.MultiHeadAttention):
            part.register_forward_hook(lambda *_, name=name: called.append(name))
    model(torch.randint(4, 20, (2, 5)), torch.tensor([5, 3]), torch.randint(4, 20, (2, 4)))
    assert len(called) == len(set(called)) == 6


def _extract_example() -> str:
    """Return the module that docs/own.md shows."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own.md").read_text(encoding="utf-8"), re.DOTALL)
    return str(example)


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write the example module to the working directory and forget it afterwards."""
    (tmp_path / "mine.py").write_text(_extract_example(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("REGARD_IMPORT", raising=False)
    yield "mine"
    MODELS.pop("mine", None)
    sys.modules.pop("mine", None)


def test_a_user_defined_model_kind_is_imported_and_built(user_module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"model": {"kind": "mine", "size": 16, "width": 8}}
    with pytest.raises(UserError, match=r"unknown model\.kind 'mine'"):
        build(recipe, 20, 20)
    monkeypatch.setenv("REGARD_IMPORT", "other")
    with pytest.raises(UserError, match="REGARD_IMPORT names 'other', which cannot be imported"):
        build(recipe, 20, 20)
    monkeypatch.setenv("REGARD_IMPORT", user_module)
    model = build(recipe, 20, 20)
    assert model.decoder.attention.score.W_q.out_features == 8
    source, lengths, target = torch.randint(4, 20, (3, 5)), torch.tensor([5, 4, 2]), torch.randint(4, 20, (3, 6))
    model.loss(source, lengths, target[:, :-1], target[:, 1:]).backward()
    assert model.decoder.attention.score.g.grad is not None
    assert len(search(model, source, lengths, beam=2)) == 3


@pytest.mark.slow
def test_a_user_defined_model_kind_trains_and_translates(
    tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example file and the commands of docs/own.md."""
    (tmp_path / "mine.py").write_text(_extract_example(), encoding="utf-8")
    pairs = generate_corpus(train=200, dev=10, test=0)
    for name, some in pairs.items():
        for side in ("source", "target"):
            lines = "".join(f"{getattr(pair, side)}\n" for pair in some)
            (tmp_path / f"{name}.{side[0]}").write_text(lines, encoding="utf-8")

    monkeypatch.delenv("REGARD_IMPORT", raising=False)
    recipe = regard("recipes", "luong2015-global").stdout.replace("kind: luong", "kind: mine\n  width: 24")
    (tmp_path / "mine.yaml").write_text(recipe, encoding="utf-8")
    train = ["train", "train.s", "train.t", "--dev", "dev.s", "dev.t", "--recipe", "mine.yaml", "--out", "run"]
    small = ["model.size=16", "model.layers=1", "model.width=8", "training.steps=3", "text.vocabulary=150"]
    monkeypatch.setenv("REGARD_IMPORT", "mine")
    trained = regard(*train, *small)
    assert trained.returncode == 0, trained.stderr
    translated = regard("translate", "run", "dev.s")
    assert (translated.returncode, len(translated.stdout.splitlines())) == (0, 10), translated.stderr
    for modules, message in (
        ("", "unknown model.kind 'mine'"),
        ("other", "REGARD_IMPORT names 'other', which cannot be imported"),
    ):
        monkeypatch.setenv("REGARD_IMPORT", modules)
        for arguments in (["translate", "run", "dev.s"], ["demo", "--recipe", "mine.yaml", "--out", "demo"]):
            refused = regard(*arguments)
            assert refused.returncode == 2
            assert message in refused.stderr
