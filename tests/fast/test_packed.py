"""Transformer on packed batches, without padding, against the reference implementation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.combinations import covering_pairs
from support.fast_models import add_hook, loss_and_gradients, make_batch, use_leaky_relu
from support.fast_models import make_training_transformer as make_model
from torch import Tensor, nn

from regard.fast import accelerate
from regard.fast.cuda_graphs.buckets import bucket_length
from regard.fast.eligibility import has_kernel_dtype
from regard.fast.training.linear_cross_entropy import ChunkedLoss
from regard.fast.training.packed import loss as packed_loss
from regard.fast.training.packed import ops
from regard.fast.training.packed.batch import BatchSize, make_ragged, pack_batch, target_lengths
from regard.models import build
from regard.models.base import CrossEntropy, Seq2Seq, default_loss_sum
from regard.special_tokens import PAD
from regard.training.distributed import DistributedContext, ModelWithLoss, apply_fsdp

LENGTHS = [([5, 1, 3, 4], [2, 6, 1, 3]), ([1], [1]), ([2, 2], [4, 1])]


def compute_packed_loss(
    model: Seq2Seq,
    given: tuple[Tensor, ...],
    more: BatchSize | None = None,
    implementation: ops.PackedOps = ops.TORCH_OPS,
) -> Tensor:
    """Return the loss of a packed batch, padded at its end to the sizes `more` if they are given."""
    r_drop = model.criterion.r_drop
    source, lengths, target_in, target_out = given
    sizes = BatchSize(len(source), int(lengths.sum()), int((target_in != PAD).sum()))
    rows = pack_batch(source, lengths, target_in, target_out, more or sizes, 2 if r_drop else 1)
    return packed_loss.compute_packed_loss(model, rows, r_drop, next(model.parameters()).dtype, implementation)


@pytest.mark.parametrize(("norm", "r_drop", "lengths"), covering_pairs(["pre", "post"], [0.0, 3.0], LENGTHS), ids=str)
def test_packed_loss_has_the_reference_value_and_gradients(norm: str, r_drop: float, lengths: Any) -> None:
    model, given = make_model(norm, r_drop).double(), make_batch(*lengths)
    expected = loss_and_gradients(model, model.loss_sum(*given))
    torch.testing.assert_close(
        loss_and_gradients(model, compute_packed_loss(model, given)), expected, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("activation", ["swish", "gelu"])
@pytest.mark.parametrize("implementation", [ops.TORCH_OPS, ops.CPU_OPS], ids=["torch", "cpu"])
def test_packed_loss_of_an_imported_model(activation: str, implementation: ops.PackedOps) -> None:
    options: dict[str, Any] = {
        "activation": activation,
        "output_bias": True,
        "scale_embedding": False,
        "decoder_layers": 1,
    }
    model, given = make_model("post", **options).double(), make_batch(*LENGTHS[0])
    torch.nn.init.normal_(model.get_submodule("decoder.output").bias)  # type: ignore[arg-type]
    assert packed_loss.find_obstacle(model) is None
    expected = loss_and_gradients(model, model.loss_sum(*given))
    loss = compute_packed_loss(model, given, implementation=implementation)
    torch.testing.assert_close(loss_and_gradients(model, loss), expected, rtol=1e-9, atol=1e-12)


def test_packed_loss_with_two_vocabularies_and_no_smoothing() -> None:
    model = make_model("pre", smoothing=0.0, sizes=(30, 20)).double()
    given = make_batch([3, 5], [4, 2], 20)
    expected = loss_and_gradients(model, model.loss_sum(*given))
    torch.testing.assert_close(
        loss_and_gradients(model, compute_packed_loss(model, given)), expected, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("more", [(11, 4), (1, 16), (11, 0)], ids=str)
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
def test_rounding_up_the_size_of_a_batch_changes_nothing(r_drop: float, more: tuple[int, int]) -> None:
    model, given = make_model("pre", r_drop).double(), make_batch([5, 1, 3, 4], [2, 6, 1, 3])
    expected = loss_and_gradients(model, model.loss_sum(*given))
    found = loss_and_gradients(model, compute_packed_loss(model, given, BatchSize(8, 13 + more[0], 12 + more[1])))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_batch_sizes_are_rounded_up_by_a_sixteenth_at_most() -> None:
    assert BatchSize(800, 25_600, 25_600).round_up(32, 32) == (1024, 25_600, 25_600)
    for words in range(1, 3000, 7):
        sizes = BatchSize(max(1, words // 9), words, words + 3)
        more = sizes.round_up(5, 12)
        assert sizes.source <= more.source <= sizes.source * 17 / 16
        assert (more.source - sizes.source) <= 5 * (more.pairs - sizes.pairs)
        assert (more.target - sizes.target) <= 12 * (more.pairs - sizes.pairs)


def test_longest_sentences_are_rounded_up_to_few_lengths() -> None:
    assert [*map(bucket_length, (1, 16, 17, 100, 128, 129, 192, 193, 1025))] == [
        16,
        16,
        32,
        128,
        128,
        192,
        192,
        256,
        1536,
    ]
    assert all(words <= bucket_length(words) <= max(16, 2 * words - 1) for words in range(1, 3000))


def test_packed_r_drop_is_the_disagreement_of_the_criterion() -> None:
    torch.manual_seed(0)
    h, weight = torch.randn(8, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64)
    targets = torch.tensor([4, 5, PAD, 7]).repeat(2)
    criterion = CrossEntropy(label_smoothing=0.2, r_drop=1.5)
    logits = (h @ weight.t())[:, None]
    expected = criterion(logits, targets[:, None]) / 2 + criterion.r_drop_loss(logits, targets[:, None])
    torch.testing.assert_close(ops.cross_entropy(h, weight, None, targets, 0.2, 1.5), expected)


def test_packing_and_padding_are_inverse() -> None:
    lengths = torch.tensor([3, 0, 1])
    rows = make_ragged(lengths, 4, 3)
    padded = torch.tensor([[1, 2, 3], [0, 0, 0], [4, 0, 0]])
    assert rows.pack(padded).tolist() == [1, 2, 3, 4]
    assert rows.pad(rows.pack(padded)).tolist() == padded.tolist()
    assert rows.cu_seqlens.tolist() == [0, 3, 3, 4]


def test_transformers_are_packed_unless_regard_fast_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(accelerate(make_model("pre")).acceleration.loss_sum, packed_loss.PackedLoss)
    recurrent = build("luong2015-global", 20, 20, size=8, layers=1)
    assert isinstance(recurrent, Seq2Seq)
    assert isinstance(accelerate(recurrent).acceleration.loss_sum, ChunkedLoss)
    monkeypatch.setenv("REGARD_FAST", "0")
    assert accelerate(make_model("pre")).acceleration.loss_sum is default_loss_sum


@pytest.mark.parametrize("change", [use_leaky_relu, add_hook])
def test_modified_transformer_is_not_packed(change: Callable[[Seq2Seq], None]) -> None:
    model, implementation = make_model("pre"), packed_loss.PackedLoss()
    assert implementation._find_supported_model(model)
    change(model)
    assert not implementation._find_supported_model(model)


def test_padding_id_before_the_end_of_a_target_counts_as_a_word() -> None:
    model = make_model("pre").double()
    source, lengths, target_in, target_out = make_batch([3, 2], [5, 3])
    target_in[0, 2] = target_out[0, 1] = PAD
    expected = loss_and_gradients(model, model.loss_sum(source, lengths, target_in, target_out))
    words = BatchSize(2, 5, int(target_lengths(target_in, target_out).sum()))
    rows = pack_batch(source, lengths, target_in, target_out, words, 1)
    found = loss_and_gradients(model, packed_loss.compute_packed_loss(model, rows, 0.0, torch.float64, ops.TORCH_OPS))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_copied_transformer_has_a_fresh_recorder() -> None:
    model = accelerate(make_model("pre"))
    assert isinstance(model.acceleration.loss_sum, packed_loss.PackedLoss)
    model.acceleration.loss_sum.kernels.is_working[torch.float32] = False
    other = copy.deepcopy(model)
    assert isinstance(other.acceleration.loss_sum, packed_loss.PackedLoss)
    assert not other.acceleration.loss_sum.kernels.is_working
    assert other.acceleration.loss_sum.graph_cache is not model.acceleration.loss_sum.graph_cache


def test_sharded_weights_use_the_reference_loss(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, fits = make_model("pre"), []

        def spy(one: Seq2Seq, *given: Any) -> Tensor:
            fits.append(has_kernel_dtype(list(one.parameters())))
            return default_loss_sum(one, *given)

        model.acceleration.loss_sum = spy
        objective = ModelWithLoss(model)
        apply_fsdp(objective, DistributedContext(), torch.device("cpu"))
        objective(make_batch([3, 2], [2, 4]), 1.0)
    finally:
        dist.destroy_process_group()
    assert fits == [False]


@pytest.mark.parametrize(
    ("lengths", "smoothing", "norm"), covering_pairs(LENGTHS, [0.0, 0.1], ["pre", "post"]), ids=str
)
def test_packed_loss_on_a_cpu_has_the_reference_value_and_gradients(lengths: Any, smoothing: float, norm: str) -> None:
    given, model = make_batch(*lengths), make_model(norm, smoothing=smoothing)
    for kind, error in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        expected = loss_and_gradients(model.to(kind), default_loss_sum(model, *given, None))
        found = loss_and_gradients(model, accelerate(model).loss_sum(*given))
        torch.testing.assert_close(found, expected, rtol=error, atol=error)


def test_packed_loss_on_a_cpu_skips_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, row_counts = accelerate(make_model("pre")), []

    def spy(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
        row_counts.append(len(x))
        return ops.feed_forward_on_cpu(x, W_1, b_1, W_2)

    monkeypatch.setattr(packed_loss, "CPU_OPS", ops.CPU_OPS._replace(feed_forward=spy))
    model.loss_sum(*make_batch([5, 1, 3, 4], [2, 6, 1, 3]))
    assert row_counts == [13, 13, 12, 12]


@pytest.mark.parametrize("r_drop", [0.0, 3.0])
def test_r_drop_and_guided_alignment_on_a_cpu_use_the_reference_loss(r_drop: float) -> None:
    model, given = accelerate(make_model("pre", r_drop)), make_batch([3, 2], [2, 4])
    model.criterion = CrossEntropy(r_drop=r_drop, guided=0.5)
    guide = None if r_drop else torch.rand(2, 4, 3)
    expected = default_loss_sum(model, *given, guide)
    torch.testing.assert_close(model.loss_sum(*given, guide), expected, rtol=0, atol=0)


def test_empty_source_uses_the_reference_loss() -> None:
    model, (source, lengths, target_in, target_out) = make_model("pre"), make_batch([3, 2], [2, 4])
    given = source, lengths * torch.tensor([1, 0]), target_in, target_out
    torch.testing.assert_close(
        accelerate(model).loss_sum(*given), default_loss_sum(model, *given, None), rtol=0, atol=0
    )


@pytest.mark.parametrize("lengths", [[3, 2], [3, 0]])
def test_kernels_are_tried_with_a_batch_of_any_lengths(lengths: list[int]) -> None:
    def fail(*_: Any) -> Tensor:
        raise RuntimeError("no such instruction")

    source, _, target_in, target_out = make_batch([3, 2], [2, 4])
    batch = source, torch.tensor(lengths), target_in, target_out
    packed_loss._try_kernels(make_model("pre"), batch, SimpleNamespace(TRITON_OPS=ops.CPU_OPS))
    broken = SimpleNamespace(TRITON_OPS=ops.CPU_OPS._replace(cross_entropy=fail))
    with pytest.raises(RuntimeError, match="no such instruction"):
        packed_loss._try_kernels(make_model("pre"), batch, broken)


def test_dropout_on_a_cpu_drops_the_right_fraction_and_rescales() -> None:
    torch.manual_seed(0)
    like = torch.empty(301, 333)
    kept = ops.dropout_mask(like, 0.3)
    assert float((kept == 0).float().mean()) == pytest.approx(0.3, abs=0.005)
    assert set(kept.flatten().tolist()) == {0.0, torch.tensor(2**16 / (2**16 - round(0.3 * 2**16))).item()}
    across = (kept[:, 1:] == 0).logical_and(kept[:, :-1] == 0)
    assert float(across.float().mean()) == pytest.approx(0.09, abs=0.005)  # neighbours are independent
    assert not ops.dropout_mask(like, 1.0).any()
    assert bool((ops.dropout_mask(like, 0.0) == 1).all())


def test_seed_determines_the_dropout_of_packed_batches() -> None:
    model, given = accelerate(make_model("pre")), make_batch([3, 2], [2, 4])
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.4

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return model.loss_sum(*given).item()

    assert loss(1) == loss(1) != loss(2)
    assert model.eval() is model
    assert loss(1) == loss(2)
