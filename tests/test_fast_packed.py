"""A Transformer without padding against the readable one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.fast import quicken
from regard.fast.output.way import Thin, takes
from regard.fast.packed import lean, plain, stack, way
from regard.fast.packed.batch import Sizes, packed, present, reach
from regard.fast.packed.spans import spans
from regard.models import build, seq2seq
from regard.models.criterion import CrossEntropy, LossSettings
from regard.models.seq2seq import Seq2Seq
from regard.symbols import PAD
from regard.training.objective import Objective
from regard.training.processes import Processes
from regard.training.sharding import shard

LENGTHS = (([5, 1, 3, 4], [2, 6, 1, 3]), ([1], [1]), ([2, 2], [4, 1]))


def model(norm: str, r_drop: float = 0.0, smoothing: float = 0.1, sizes: tuple[int, int] = (30, 30)) -> Seq2Seq:
    """A small Transformer without dropout: what is dropped is chance."""
    torch.manual_seed(0)
    made = build("vaswani2017-base", *sizes, size=24, layers=2, heads=3, dropout=0.0, norm=norm)
    assert isinstance(made, Seq2Seq)
    made.criterion = CrossEntropy(LossSettings(label_smoothing=smoothing, r_drop=r_drop))
    return made.train()


def batch(sources: list[int], targets: list[int], vocabulary: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sentences of the given lengths."""
    torch.manual_seed(1)

    def padded(lengths: list[int]) -> Tensor:
        ids = torch.randint(4, vocabulary, (len(lengths), max(lengths)))
        return ids.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)

    return padded(sources), torch.tensor(sources), padded(targets), padded(targets)


def summed(made: Seq2Seq, given: tuple[Tensor, ...], more: Sizes | None = None) -> Tensor:
    """The loss without padding, or with some behind."""
    r_drop = made.criterion.settings.r_drop
    source, lengths, target_in, target_out = given
    sizes = Sizes(len(source), int(lengths.sum()), int((target_in != PAD).sum()))
    batch = packed(source, lengths, target_in, target_out, more or sizes, 2 if r_drop else 1)
    return stack.summed(made, batch, r_drop, next(made.parameters()).dtype, plain.PLAIN)


def everything(made: Seq2Seq, loss: Tensor) -> list[Tensor]:
    """The loss and all gradients."""
    made.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(weight.grad for weight in made.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_loss_and_its_gradients_are_the_readable_ones(norm: str, r_drop: float, lengths: Any) -> None:
    made, given = model(norm, r_drop).double(), batch(*lengths)
    expected = everything(made, made.summed(*given))
    torch.testing.assert_close(everything(made, summed(made, given)), expected, rtol=1e-9, atol=1e-12)


def test_two_vocabularies_and_no_smoothing() -> None:
    made = model("pre", smoothing=0.0, sizes=(30, 20)).double()
    given = batch([3, 5], [4, 2], 20)
    expected = everything(made, made.summed(*given))
    torch.testing.assert_close(everything(made, summed(made, given)), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("more", [(11, 4), (1, 16), (11, 0)], ids=str)
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
def test_padding_that_makes_batches_alike_changes_nothing(r_drop: float, more: tuple[int, int]) -> None:
    made, given = model("pre", r_drop).double(), batch([5, 1, 3, 4], [2, 6, 1, 3])
    expected = everything(made, made.summed(*given))
    found = everything(made, summed(made, given, Sizes(8, 13 + more[0], 12 + more[1])))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_sizes_grow_by_a_sixteenth_at_the_most_and_have_room_for_what_is_added() -> None:
    assert Sizes(800, 25_600, 25_600).rounded(32, 32) == (1024, 25_600, 25_600)
    for words in range(1, 3000, 7):
        sizes = Sizes(max(1, words // 9), words, words + 3)
        more = sizes.rounded(5, 12)
        assert sizes.source <= more.source <= sizes.source * 17 / 16
        assert (more.source - sizes.source) <= 5 * (more.pairs - sizes.pairs)
        assert (more.target - sizes.target) <= 12 * (more.pairs - sizes.pairs)


def test_batches_that_are_alike_have_few_lengths_and_none_that_is_too_short() -> None:
    assert [*map(reach, (1, 16, 17, 100, 128, 129, 192, 193, 1025))] == [16, 16, 32, 128, 128, 192, 192, 256, 1536]
    assert all(words <= reach(words) <= max(16, 2 * words - 1) for words in range(1, 3000))


def test_two_passes_with_other_dropout_disagree_as_the_criterion_says() -> None:
    torch.manual_seed(0)
    h, weight = torch.randn(8, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64)
    targets = torch.tensor([4, 5, PAD, 7]).repeat(2)
    criterion = CrossEntropy(LossSettings(label_smoothing=0.2, r_drop=1.5))
    logits = (h @ weight.t())[:, None]
    expected = criterion(logits, targets[:, None]) / 2 + criterion.disagreement(logits, targets[:, None])
    torch.testing.assert_close(plain.losses(h, weight, None, targets, 0.2, 1.5), expected)


def test_packing_and_padding_are_each_others_inverse() -> None:
    lengths = torch.tensor([3, 0, 1])
    rows = spans(lengths, 4, 3)
    padded = torch.tensor([[1, 2, 3], [0, 0, 0], [4, 0, 0]])
    assert rows.pack(padded).tolist() == [1, 2, 3, 4]
    assert rows.pad(rows.pack(padded)).tolist() == padded.tolist()
    assert rows.starts.tolist() == [0, 3, 3, 4]


def test_which_models_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(quicken(model("pre")).way, way.Packed)
    recurrent = build("luong2015-global", 20, 20, size=8, layers=1)
    assert isinstance(recurrent, Seq2Seq)
    assert isinstance(quicken(recurrent).way, Thin)
    monkeypatch.setenv("REGARD_FAST", "0")
    assert quicken(model("pre")).way is seq2seq.added_up


def gelu(made: Seq2Seq) -> None:
    made.encoder.layers[0].feedforward[1] = nn.GELU()  # type: ignore[index,union-attr]


def biased(made: Seq2Seq) -> None:
    made.decoder.output = nn.Linear(24, 30)


def watched(made: Seq2Seq) -> None:
    made.decoder.layers[0].register_forward_hook(lambda *_: None)  # type: ignore[index,union-attr]


@pytest.mark.parametrize("change", [gelu, biased, watched])
def test_a_model_that_somebody_has_changed_within_is_not_taken(change: Callable[[Seq2Seq], None]) -> None:
    made, taken = model("pre"), way.Packed()
    assert taken.knows(made)
    change(made)
    assert not taken.knows(made)


def test_padding_before_the_last_word_of_a_target_counts_as_a_word() -> None:
    made = model("pre").double()
    source, lengths, target_in, target_out = batch([3, 2], [5, 3])
    target_in[0, 2] = target_out[0, 1] = PAD
    expected = everything(made, made.summed(source, lengths, target_in, target_out))
    words = Sizes(2, 5, int(present(target_in, target_out).sum()))
    laid = packed(source, lengths, target_in, target_out, words, 1)
    found = everything(made, stack.summed(made, laid, 0.0, torch.float64, plain.PLAIN))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_copy_of_a_model_begins_anew() -> None:
    made = quicken(model("pre"))
    assert isinstance(made.way, way.Packed)
    made.way.batches = 7
    other = copy.deepcopy(made)
    assert isinstance(other.way, way.Packed)
    assert other.way.batches == 0
    assert other.way.recorder is not made.way.recorder


def test_weights_that_lie_apart_are_not_taken(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        made, asked = model("pre"), []

        def spy(one: Seq2Seq, *given: Any) -> Tensor:
            asked.append(takes(list(one.parameters())))
            return seq2seq.added_up(one, *given)

        made.way = spy
        objective = Objective(made)
        shard(objective, Processes(), torch.device("cpu"))
        objective(batch([3, 2], [2, 4]), 1.0)
    finally:
        dist.destroy_process_group()
    assert asked == [False]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_on_a_cpu_the_loss_and_its_gradients_are_the_readable_ones(lengths: Any, smoothing: float, norm: str) -> None:
    given, made = batch(*lengths), model(norm, smoothing=smoothing)
    for kind, error in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        expected = everything(made.to(kind), seq2seq.added_up(made, *given, None))
        found = everything(made, quicken(made).summed(*given))
        torch.testing.assert_close(found, expected, rtol=error, atol=error)


def test_on_a_cpu_padding_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = quicken(model("pre")), []

    def spy(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
        read.append(len(x))
        return lean.feed_forward(x, W_1, b_1, W_2)

    monkeypatch.setattr(way, "LEAN", lean.LEAN._replace(feed_forward=spy))
    made.summed(*batch([5, 1, 3, 4], [2, 6, 1, 3]))
    assert read == [13, 13, 12, 12]


@pytest.mark.parametrize("r_drop", [0.0, 3.0])
def test_what_the_parts_for_a_cpu_do_not_know_goes_the_readable_way(r_drop: float) -> None:
    made, given = quicken(model("pre", r_drop)), batch([3, 2], [2, 4])
    made.criterion = CrossEntropy(LossSettings(r_drop=r_drop, guided=0.5))
    guide = None if r_drop else torch.rand(2, 4, 3)
    expected = seq2seq.added_up(made, *given, guide)
    torch.testing.assert_close(made.summed(*given, guide), expected, rtol=0, atol=0)


def test_a_source_without_words_goes_the_readable_way() -> None:
    made, (source, lengths, target_in, target_out) = model("pre"), batch([3, 2], [2, 4])
    given = source, lengths * torch.tensor([1, 0]), target_in, target_out
    torch.testing.assert_close(quicken(made).summed(*given), seq2seq.added_up(made, *given, None), rtol=0, atol=0)


def test_dropout_on_a_cpu_has_its_share_and_makes_up_for_it() -> None:
    torch.manual_seed(0)
    like = torch.empty(301, 333)
    kept = lean.kept(like, 0.3)
    assert float((kept == 0).float().mean()) == pytest.approx(0.3, abs=0.005)
    assert set(kept.flatten().tolist()) == {0.0, torch.tensor(2**16 / (2**16 - round(0.3 * 2**16))).item()}
    across = (kept[:, 1:] == 0).logical_and(kept[:, :-1] == 0)
    assert float(across.float().mean()) == pytest.approx(0.09, abs=0.005)  # neighbours know nothing of each other
    assert not lean.kept(like, 1.0).any()
    assert bool((lean.kept(like, 0.0) == 1).all())


def test_on_a_cpu_a_seed_gives_the_same_dropout_again() -> None:
    made, given = quicken(model("pre")), batch([3, 2], [2, 4])
    for part in made.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.4

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return made.summed(*given).item()

    assert loss(1) == loss(1) != loss(2)
    assert made.eval() is made
    assert loss(1) == loss(2)
