"""Models, training, kernels, CUDA graphs and device search on a GPU, against the CPU or the reference."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from support.corpora import translation_recipes
from support.fast_models import (
    CELLS,
    DEVICE_SEARCH_MODELS,
    LUONG,
    TRANSFORMER,
    loss_and_gradients,
    make_batch,
    make_device_search_model,
    make_training_transformer,
    randomize,
)
from support.search import make_sources
from support.training import train_tiny

from regard.fast import accelerate
from regard.fast.cuda_graphs.cache import (
    GRAPH_CACHES,
    MIN_CALLS,
    GraphedFunctionCache,
    GraphReplayer,
    get_graph_cache,
)
from regard.fast.cuda_graphs.pool import GraphMemoryPool, StaticBuffers
from regard.fast.decoding.device import ops as decoding_ops
from regard.fast.decoding.device import search as device_beam_search
from regard.fast.decoding.device.ops import LSTMWeights, RowGather, SourceMemory, TokenEmbedding, TopK
from regard.fast.decoding.device.search import DeviceSearcher
from regard.fast.decoding.device.state import BeamState, WorkspaceSize
from regard.fast.decoding.search_trace import CHUNK_STEPS, SearchRequest
from regard.fast.diagnosis import diagnose_parts
from regard.fast.training import linear_cross_entropy
from regard.fast.training.graphed_loop import run_graphed
from regard.fast.training.luong import run_input_feeding_loop, run_luong_loop
from regard.fast.training.packed import loss as packed_loss
from regard.fast.training.packed import ops
from regard.fast.training.packed.batch import make_ragged
from regard.fast.training.rnn_layer import run_layer
from regard.fast.training.step_ops import AttentionGrads, AttentionStep, LSTMStep, StepOps, Window
from regard.models import build
from regard.models.base import CrossEntropy, default_loss_sum
from regard.models.rnn_common import unroll_decoder
from regard.nn import state_tensors
from regard.nn.recurrent import unroll_cell
from regard.search import Hypothesis, search
from regard.special_tokens import BOS, EOS
from regard.training import train
from regard.translate import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU"),
]
RECURRENT = ["luong2015-global", "luong2015-local-p", "bahdanau2015", "cho2014", "sutskever2014"]
RECIPES = [name for name in translation_recipes() if name != "vaswani2017-big"]


def tiny_options(name: str) -> dict[str, Any]:
    return {"model.heads": 2} if name in ("vaswani2017-base", "default") else {}


@pytest.mark.parametrize("name", RECIPES)
def test_model_on_a_gpu_has_the_outputs_of_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 20, 30, size=16, layers=2).eval()
    randomize(model, 0.4)  # with the initial weights of the papers all words are nearly equally likely
    source, lengths = torch.randint(4, 20, (3, 7)), torch.tensor([7, 4, 1])
    target = torch.randint(4, 30, (3, 5))
    target[:, 0] = BOS
    with torch.no_grad():
        expected = model(source, lengths, target)
        best = search(model, source, lengths, beam=4, n_best=2, max_length=8)
        model = model.cuda()
        found = model(source.cuda(), lengths.cuda(), target.cuda()).cpu()
        there = search(model, source.cuda(), lengths.cuda(), beam=4, n_best=2, max_length=8)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert [[hypothesis.tokens for hypothesis in row] for row in there] == [[h.tokens for h in row] for row in best]


@pytest.mark.parametrize("name", RECIPES)
def test_bf16_run_is_trained_resumed_and_translates(name: str, corpus: Path, tmp_path: Path) -> None:
    run = train_tiny(name, corpus, tmp_path / "run", **{**tiny_options(name), "training.steps": 10})
    more: dict[str, Any] = {"training.steps": 24}
    run = train(name, None, run.folder, resume=True, **more)
    losses = [row["loss"] for row in run.read_metrics() if row["kind"] == "dev"]
    assert losses[-1] < losses[0]
    aligned = load(run.folder).translate(["The dog sleeps ."])[0].alignment is not None
    assert aligned == (name not in ("sutskever2014", "cho2014"))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_layer_kernel_has_the_outputs_and_gradients_of_the_loop(name: str, dtype: torch.dtype, close: float) -> None:
    def run_with_gradients(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        cell = CELLS[name](24, 40).cuda()
        x = torch.randn(5, 17, 24).cuda().requires_grad_()
        lengths = torch.tensor([17, 1, 9, 0, 3]).cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            outputs, last = run(cell, x, lengths, None)
        found = [outputs, *state_tensors(last)]
        sum(part.float().square().sum() for part in found).backward()
        return [*found, x.grad, *(parameter.grad for parameter in cell.parameters())]

    torch.backends.cudnn.allow_tf32 = False
    fast = run_with_gradients(run_layer)
    assert fast[0].dtype == dtype
    for found, expected in zip(fast, run_with_gradients(unroll_cell), strict=True):
        assert (found.float() - expected.float()).norm() <= close * expected.float().norm() + 1e-7


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", CELLS)
def test_layer_kernel_does_not_synchronize(name: str) -> None:
    cell, x = CELLS[name](24, 40).cuda(), torch.randn(5, 17, 24).cuda()
    lengths = torch.tensor([17, 1, 9, 0, 3]).cuda()
    run_layer(cell, x, lengths, None)
    try:
        torch.cuda.set_sync_debug_mode("error")
        run_layer(cell, x, lengths, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=str)
def test_captured_gru_has_the_outputs_of_the_loop_for_each_shape(dtype: torch.dtype, close: float) -> None:
    torch.manual_seed(0)
    cell = CELLS["gru-paper"](24, 40).cuda()
    for sizes in ([17, 1, 9, 0, 3], [4, 16], [17, 1, 9, 0, 3]):
        for turn in range(MIN_CALLS + 1):
            lengths = torch.tensor(sizes).cuda()
            x = torch.randn(len(sizes), max(sizes), 24).cuda()
            found = [run_layer_with_gradients(run, cell, x, lengths, dtype) for run in (run_layer, unroll_cell)]
            for one, expected in zip(*found, strict=True):
                assert (one - expected).norm() <= close * expected.norm() + 1e-7, turn
    assert len(get_graph_cache(cell).graphs) == 2


def run_layer_with_gradients(
    run: Any, cell: torch.nn.Module, x: torch.Tensor, lengths: torch.Tensor, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Return outputs, last state and all gradients of a layer."""
    cell.zero_grad()
    x = x.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        outputs, last = run(cell, x, lengths, None)
    (outputs.float().square().sum() + last.float().sum()).backward()
    return [one.detach().float() for one in (outputs, last, x.grad, *(weight.grad for weight in cell.parameters()))]


def test_recurrent_training_with_kernels_has_the_reference_losses(
    corpus: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    def losses(fast: str) -> list[float]:
        monkeypatch.setenv("REGARD_FAST", fast)
        changes: dict[str, Any] = {"training.precision": "fp32", "model.dropout": 0.0, "training.steps": 10}
        run = train_tiny("luong2015-global", corpus, tmp_path / fast, **changes)
        return [row["loss"] for row in run.read_metrics()]

    assert losses("1") == pytest.approx(losses("0"), rel=1e-3)


BATCH_LENGTHS = (
    ([5, 1, 3, 4], [2, 6, 1, 3]),
    ([1], [1]),
    ([40, 17, 33], [50, 64, 2]),
    ([100, 128], [128, 70]),
    ([150, 3], [140, 9]),
)


def relative_errors(found: list[torch.Tensor], exact: list[torch.Tensor]) -> torch.Tensor:
    """Return the norm of the error of each tensor as a fraction of its norm."""
    return torch.stack([(a.double() - b).norm() / (b.norm() + 1e-6) for a, b in zip(found, exact, strict=True)])


def compute_in_fp64(norm: str, r_drop: float, given: Any) -> list[torch.Tensor]:
    """Return the loss and all gradients in double precision."""
    model = make_training_transformer(norm, r_drop).double().cuda()
    return loss_and_gradients(model, model.loss_sum(*given))


def is_close_except_relu(found: torch.Tensor, fraction: float = 0.8) -> bool:
    """Allow for ReLU units near 0, which may switch and change all gradients below them by a thousandth."""
    return bool(found[0] < 1e-5 and (found < 1e-5).float().mean() > fraction and found.max() < 5e-3)


@pytest.mark.parametrize("lengths", BATCH_LENGTHS, ids=str)
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_packed_transformer_has_the_reference_loss_and_gradients(norm: str, r_drop: float, lengths: Any) -> None:
    model = make_training_transformer(norm, r_drop).cuda()
    given = tuple(tensor.cuda() for tensor in make_batch(*lengths))
    exact = compute_in_fp64(norm, r_drop, given)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model.loss_sum(*given)
    reference = relative_errors(loss_and_gradients(model, loss), exact)
    accelerate(model)
    assert is_close_except_relu(relative_errors(loss_and_gradients(model, model.loss_sum(*given)), exact))
    with torch.autocast("cuda", torch.bfloat16):
        loss = model.loss_sum(*given)
    found = loss_and_gradients(model, loss)
    assert {each.dtype for each in found} == {torch.float32}
    packed = relative_errors(found, exact)
    assert packed.mean() < 1.3 * reference.mean() + 1e-3  # bf16 is off by some hundredths either way


SIMILAR_BATCHES = (
    (([29, 9, 26], [17, 20, 30]), ([29, 7, 28], [19, 20, 28]), ([28, 8, 27], [17, 20, 29])),
    (([140, 9, 26], [150, 20, 3]), ([145, 4, 26], [150, 19, 4]), ([141, 8, 25], [149, 20, 4])),
)


@pytest.mark.parametrize(
    ("similar", "fraction"), list(zip(SIMILAR_BATCHES, (0.8, 0.1), strict=True)), ids=["short", "long"]
)
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_captured_updates_are_those_of_the_reference(norm: str, r_drop: float, similar: Any, fraction: float) -> None:
    model = make_training_transformer(norm, r_drop).cuda()
    batches = [tuple(tensor.cuda() for tensor in make_batch(*each)) for each in similar]
    expected = [compute_in_fp64(norm, r_drop, given) for given in batches]
    accelerate(model)
    for _ in range(4):
        for given, exact in zip(batches, expected, strict=True):
            assert is_close_except_relu(
                relative_errors(loss_and_gradients(model, model.loss_sum(*given)), exact), fraction
            )
    assert isinstance(model.acceleration.loss_sum, packed_loss.PackedLoss)
    assert len(model.acceleration.loss_sum.graph_cache.graphs) == 1


def change_eps(model: Any) -> None:
    for part in model.modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.eps = 0.5


def change_scale(model: Any) -> None:
    model.encoder.embedding.scale = model.decoder.embedding.scale = 0.5


def change_heads(model: Any) -> None:
    for layer in (*model.encoder.layers, *model.decoder.layers):
        for name in ("attention", "cross_attention"):
            if hasattr(layer, name):
                getattr(layer, name).heads = 2


CONSTANT_CHANGES = [change_eps, change_scale, change_heads]


@pytest.mark.parametrize("change", CONSTANT_CHANGES)
def test_captured_loss_follows_changed_constants(change: Any) -> None:
    model, double = make_training_transformer("pre").cuda(), make_training_transformer("pre").double().cuda()
    given = tuple(tensor.cuda() for tensor in make_batch([9, 3], [7, 5]))
    accelerate(model)
    for _ in range(4):
        before = model.loss_sum(*given)
    assert isinstance(model.acceleration.loss_sum, packed_loss.PackedLoss)
    assert model.acceleration.loss_sum.graph_cache.graphs
    change(model)
    change(double)
    exact = loss_and_gradients(double, double.loss_sum(*given))
    assert abs(before.item() - exact[0].item()) > 1e-3 * abs(exact[0].item())
    for _ in range(4):
        found = loss_and_gradients(model, model.loss_sum(*given))
        assert is_close_except_relu(relative_errors(found, exact))
    assert model.acceleration.loss_sum.graph_cache.graphs


def test_hook_on_an_embedding_is_called_after_the_loss_was_captured() -> None:
    model: Any = accelerate(make_training_transformer("pre").cuda())
    given = tuple(tensor.cuda() for tensor in make_batch([9, 3], [7, 5]))
    for _ in range(4):
        model.loss_sum(*given)
    seen: list[tuple[int, ...]] = []
    hook: Any = lambda part, ids, out: seen.append(tuple(out.shape))  # noqa: E731
    with model.encoder.embedding.register_forward_hook(hook):
        model.loss_sum(*given)
    assert seen == [(2, 9, 24)]


def test_patched_class_is_used_after_the_loss_was_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = accelerate(make_training_transformer("pre").cuda())
    source, lengths, target_in, target_out = given = tuple(tensor.cuda() for tensor in make_batch([9, 3], [7, 5]))
    for _ in range(4):
        model.loss_sum(*given)
    forward = torch.nn.LayerNorm.forward
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda norm, x: 2 * forward(norm, x))
    expected = default_loss_sum(model, source, lengths, target_in, target_out, None)
    torch.testing.assert_close(model.loss_sum(*given), expected)


@pytest.mark.filterwarnings("ignore")
def test_random_numbers_and_memory_work_after_a_failed_capture() -> None:
    replayer, buffer = GraphReplayer(GraphMemoryPool(), 1), torch.zeros(4, device="cuda")

    def fail() -> None:
        buffer.uniform_()
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()  # which invalidates a capture

    for _ in range(2):  # the second call is captured
        replayer("fail", fail)
    assert not replayer.graphs
    assert not replayer.pool.is_enabled
    assert torch.rand(4, device="cuda").std() > 0
    torch.manual_seed(1)
    drawn = torch.rand(4, device="cuda")

    def draw() -> None:
        buffer.uniform_().mul_(2.0)

    again = GraphReplayer(GraphMemoryPool(), 1)
    for _ in range(2):
        again("draw", draw)
    assert again.graphs
    torch.manual_seed(1)
    again("draw", draw)
    torch.testing.assert_close(buffer, 2 * drawn)


def test_two_captured_losses_may_be_added_before_backward() -> None:
    model = make_training_transformer("pre").cuda()
    one, other = (tuple(tensor.cuda() for tensor in make_batch([s, 3], [7, 5])) for s in (9, 4))
    double = make_training_transformer("pre").double().cuda()
    exact = loss_and_gradients(double, double.loss_sum(*one) + 2 * double.loss_sum(*other))
    accelerate(model)
    for _ in range(5):
        assert is_close_except_relu(
            relative_errors(loss_and_gradients(model, model.loss_sum(*one) + 2 * model.loss_sum(*other)), exact)
        )


def test_captured_dropout_is_drawn_anew_and_follows_the_seed() -> None:
    model = make_training_transformer("pre").cuda()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.4
    given = tuple(tensor.cuda() for tensor in make_batch([5, 3], [7, 5]))
    accelerate(model)
    for _ in range(5):
        model.loss_sum(*given)
    assert isinstance(model.acceleration.loss_sum, packed_loss.PackedLoss)
    assert model.acceleration.loss_sum.graph_cache.graphs
    losses = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        losses.append((model.loss_sum(*given).item(), model.loss_sum(*given).item()))
    assert losses[0] == losses[2]
    assert len({*losses[0], *losses[1]}) == 4


@pytest.mark.parametrize("r_drop", [0.0, 1.5])
def test_fused_loss_by_rows_has_the_reference_gradients(r_drop: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.fast.kernels.triton import cross_entropy

    monkeypatch.setattr(cross_entropy, "MAX_LOGITS", 5 * 10_007)
    torch.manual_seed(0)
    h, weight, bias = torch.randn(14, 24).cuda(), torch.randn(10_007, 24).cuda(), torch.randn(10_007).cuda()
    targets = torch.tensor([4, 5, 0, 7, 10_006, 4, 9]).repeat(2).cuda()

    def gradients(losses: Any) -> list[torch.Tensor]:
        leaves = [each.clone().requires_grad_() for each in (h, weight, bias)]
        loss = losses(*leaves, targets, 0.1, r_drop)
        (loss * 0.25).backward()
        return [loss.detach(), *(leaf.grad for leaf in leaves)]

    torch.testing.assert_close(
        gradients(cross_entropy.linear_cross_entropy), gradients(ops.cross_entropy), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("r_drop", [0.0, 1.5])
@pytest.mark.parametrize(("kind", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("recipe", RECURRENT)
def test_fused_loss_of_a_recurrent_model_is_that_of_the_reference(
    recipe: str, kind: torch.dtype, close: float, r_drop: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.fast.kernels.triton import cross_entropy

    calls = []
    losses = cross_entropy.linear_cross_entropy
    monkeypatch.setattr(cross_entropy, "linear_cross_entropy", lambda *given: calls.append(given) or losses(*given))  # type: ignore[func-returns-value]
    torch.manual_seed(0)
    model: Any = build(recipe, 50, 70, size=32, dropout=0.0).cuda().train()
    model.criterion = CrossEntropy(label_smoothing=0.1, r_drop=r_drop)
    given = [each.cuda() for each in make_batch([5, 1, 9, 4], [2, 6, 1, 3])]

    def compute(implementation: Any) -> list[torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cuda", kind, enabled=kind != torch.float32):
            loss = implementation(model, *given, None)
        loss.backward()
        return [loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]

    thin = linear_cross_entropy.ChunkedLoss()
    compute(thin)  # the first call tests the kernels
    found, expected = compute(thin), compute(default_loss_sum)
    assert len(calls) == 4  # two of the self-test, and two
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.float() - theirs.float()).norm() <= close * theirs.float().norm() + 1e-5


def test_fused_dropout_is_the_same_in_forward_and_backward() -> None:
    from regard.fast.training.packed import ops_triton

    torch.manual_seed(0)
    x, weight = torch.randn(300, 40).cuda(), torch.ones(40).cuda()
    y = torch.randn(300, 40).cuda().requires_grad_()
    zero = torch.zeros(40).cuda()
    s, n = ops_triton.add_norm(x, y, zero, weight, zero, 1e-5, 0.3, False)
    kept = (s - x) != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.02)
    torch.testing.assert_close(s, x + y.detach() * kept / 0.7)
    torch.autograd.backward([s, n], [torch.ones_like(s), torch.zeros_like(n)])
    torch.testing.assert_close(y.grad, kept / 0.7)


def test_packed_sentences_do_not_attend_to_each_other() -> None:
    from regard.fast.training.packed import ops_triton

    torch.manual_seed(0)
    rows = make_ragged(torch.tensor([3, 5, 2]).cuda(), 10, 5)
    qkv = torch.randn(10, 3 * 24).cuda()
    first = ops_triton.self_attention(qkv, rows, 3, True)
    qkv[8:] = torch.inf
    torch.testing.assert_close(ops_triton.self_attention(qkv, rows, 3, True)[:8], first[:8], rtol=0, atol=0)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (64, 32), (200, 33), (801, 7), (3, 1000)])
def test_fused_counts_of_a_batch_are_right(rows: int, size: int) -> None:
    from regard.fast.training.packed import ops_triton

    torch.manual_seed(rows)
    lengths = torch.randint(1, 90, (rows,), device="cuda")
    ids = torch.randint(0, 3, (rows, size + 1), device="cuda")
    for given in ((ids[:, :-1], ids[:, 1:]), (ids.t().contiguous().t()[:, 1:], ids[:, 1:].contiguous())):
        assert ops_triton.count_tokens(lengths, *given).tolist() == ops.count_tokens(lengths, *given).tolist()


def test_packed_training_has_the_reference_losses(corpus: Path, tmp_path: Path, monkeypatch: Any) -> None:
    calls = []

    def spy(*given: Any) -> torch.Tensor:
        calls.append(given)
        return summed(*given)

    summed = packed_loss.compute_packed_loss
    monkeypatch.setattr(packed_loss, "compute_packed_loss", spy)

    def losses(fast: str) -> list[float]:
        monkeypatch.setenv("REGARD_FAST", fast)
        changes: dict[str, Any] = {**tiny_options("default"), "training.precision": "fp32", "model.dropout": 0.0}
        run = train_tiny("default", corpus, tmp_path / fast, **changes, **{"training.steps": 10, "loss.r_drop": 1.0})
        return [row["loss"] for row in run.read_metrics()]

    assert losses("1") == pytest.approx(losses("0"), rel=1e-3)
    assert calls


def is_near(found: torch.Tensor, expected: torch.Tensor, close: float) -> bool:
    """Compare by norm: in bf16 two orders of summation differ in the last digits everywhere."""
    return bool((found.float() - expected.float()).norm() <= close * expected.float().norm() + 1e-6)


SIZES = [(1, 1, 1, 1), (2, 7, 3, 5), (3, 33, 1, 33), (5, 1000, 30, 1000), (3, 40, 70, 80), (2, 16, 1000, 24)]


def test_tanh_of_triton_kernels_is_exact_near_zero_too() -> None:
    pytest.importorskip("triton")
    from regard.fast.kernels.triton.rnn import TritonStepOps

    z = torch.logspace(-6, 1, 5001, device="cuda").repeat(2, 1)
    z[1] *= -1
    out, fed = torch.empty_like(z), torch.empty_like(z)
    TritonStepOps().attentional_tanh(z, out, fed, None, 1.0)
    torch.testing.assert_close(out.double(), z.double().tanh(), rtol=5e-7, atol=0.0)
    assert torch.equal(out, fed)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_triton_kernels_have_the_outputs_of_the_plain_steps(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, close: float, dropout: bool
) -> None:
    pytest.importorskip("triton")
    from regard.fast.kernels.triton.rnn import TritonStepOps

    B, H, S, V = sizes

    def normal(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    def wide(*shape: int) -> torch.Tensor:
        return normal(*shape, dtype=torch.float32)

    def run_steps(steps: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        kept = (torch.rand(B, 3, H, device="cuda") < 0.6)[:, 1] if dropout else None
        pre, c, d_c = normal(B, 3, 4 * H)[:, 1], wide(B, H), wide(B, H)
        after, own, seen, d_pre = wide(B, 3, H), normal(B, 3, 2 * H), normal(B, 3, V + H), normal(B, 3, 4 * H)
        step = LSTMStep(pre, c, after[:, 1], kept, 1 / 0.6)
        steps.lstm_gates(step, own[:, 2, H:], seen[:, 0, V:])
        steps.lstm_gates_backward(step, normal(B, H), normal(B, 2 * H)[:, H:], d_c, d_pre[:, 2])
        keys, values = normal(B, S, H), normal(B, S, V)
        mask = torch.arange(S, device="cuda") < torch.randint(0, S + 1, (B, 1), device="cuda")
        weights, d_scores, d_all = wide(B, 3, S), normal(B, 3, S), wide(B, H)
        steps.attention(AttentionStep(keys, values, mask, weights[:, 1]), normal(B, H), seen[:, 1, :V])
        assert not weights[:, 1][~mask].any()
        attention = torch.softmax(wide(B, S).masked_fill(~mask, -1e9), -1) * mask
        steps.attention_backward(
            AttentionStep(keys, values, mask, attention),
            AttentionGrads(normal(B, V), wide(B, 3, S)[:, 1], normal(B, H), d_scores[:, 1], d_all),
        )
        out, fed, d_z = normal(B, 3, H), normal(B, 2 * H), normal(B, H)
        steps.attentional_tanh(normal(B, H), out[:, 1], fed[:, :H], kept, 1 / 0.6)
        d_out, d_fed, squashed = normal(B, 3, H)[:, 1], normal(B, 2 * H)[:, :H], torch.tanh(normal(B, H))
        steps.attentional_tanh_backward(d_out, squashed, d_fed, kept, 1 / 0.6, d_z)
        lengths, u, v, p, d_p, d_u = mask.sum(1).float(), wide(B, 3, H), wide(H), wide(B, 3), wide(B, 3), wide(B, 3, H)
        steps.predict_center(u[:, 1], v, lengths, p[:, 2])
        local, around, d_near, d_around = wide(B, 3, S), normal(B, V), normal(B, 3, S), wide(B, H)
        window, centre = Window(2, 1.5), (torch.rand(B, 3, device="cuda") * S)[:, 1]
        steps.attention(AttentionStep(keys, values, mask, local[:, 1], centre, window), normal(B, H), around)
        attention = torch.softmax(wide(B, S).masked_fill(~mask, -1e9), -1) * mask * (local[:, 1] != 0)
        steps.attention_backward(
            AttentionStep(keys, values, mask, attention, centre, window),
            AttentionGrads(normal(B, V), wide(B, 3, S)[:, 1], normal(B, H), d_near[:, 1], d_around, d_p[:, 1]),
        )
        steps.predict_center_backward(wide(B, 2)[:, 1], centre, lengths, u[:, 1], v, d_u[:, 2])
        windowed = wide(B, 3, S)
        near = AttentionStep(keys, values, mask, windowed[:, 1], centre.floor(), Window(3))
        steps.attention(near, normal(B, H), normal(B, V))
        local_outputs = [p, local, around, d_near, d_around, d_p, d_u, windowed]
        return [after, own, seen, d_c, d_pre, weights, d_scores, d_all, out, fed, d_z, *local_outputs]

    for number, (found, expected) in enumerate(zip(run_steps(TritonStepOps()), run_steps(StepOps()), strict=True)):
        assert is_near(found, expected, close), number


def run_decoder(run: Any, model: Any, B: int, T: int, S: int, bf16: bool = False, seed: int = 0) -> list[torch.Tensor]:
    """Return outputs and all gradients of a decoder whose loop is `run`."""
    torch.manual_seed(seed)
    source, target = torch.randint(4, 20, (B, S)).cuda(), torch.randint(4, 30, (B, T)).cuda()
    lengths = torch.randint(0, S + 1, (B,)).cuda()
    came = torch.randn(B, T, 30).cuda()
    model.zero_grad()
    model.decoder.unroll = run
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        decoded = model.decoder(model.encode(source, lengths), target)
    loss = (decoded.logits.float() * came).sum() + decoded.attended.weights.square().sum()
    loss.backward()
    found = [decoded.logits, decoded.attended.context, decoded.attended.weights]
    # Hard attention without training leaves its score without a gradient, for which a graph has zeros.
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in model.parameters()]
    return [one.detach() for one in found] + gradients


def make_luong(**options: Any) -> Any:
    torch.manual_seed(0)
    model = accelerate(build("luong2015-global", 20, 30, **{"size": 24, "layers": 2, "dropout": 0.0, **options})).cuda()
    randomize(model, 0.3)
    return model


FED_MODELS: list[dict[str, Any]] = [
    {},
    {"score": "dot", "layers": 1, "size": 33},
    {"bidirectional": True, "layers": 3},
    {"score": "location"},
    {"alignment": "local-m", "window": 10},
    {"alignment": "local-m", "window": 4, "score": "location"},
    {"alignment": "local-p", "window": 30},
]
SHAPES = [(1, 1, 1), (5, 7, 9), (17, 19, 21), (64, 12, 30)]


@pytest.mark.parametrize(("bf16", "close"), [(False, 1e-5), (True, 5e-2)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", FED_MODELS, ids=str)
def test_fast_loop_has_the_outputs_and_gradients_of_the_reference(
    options: dict[str, Any], shape: tuple[int, int, int], bf16: bool, close: float
) -> None:
    model = make_luong(**options)
    expected = run_decoder(unroll_decoder, model, *shape, bf16=bf16)
    for found, other in zip(
        run_decoder(partial(run_input_feeding_loop, graph_cache=None), model, *shape, bf16=bf16), expected, strict=True
    ):
        assert is_near(found, other, close)
    captured = GraphedFunctionCache(min_calls=1)
    run = partial(run_input_feeding_loop, graph_cache=captured)
    for _ in range(2):
        for found, other in zip(run_decoder(run, model, *shape, bf16=bf16), expected, strict=True):
            assert is_near(found, other, close)
    assert captured.pool.is_enabled
    assert len(captured.graphs) == 1


def test_graphs_of_many_shapes_share_memory_and_stay_exact() -> None:
    model, captured = make_luong(dropout=0.3), GraphedFunctionCache(min_calls=1, max_graphs=6)
    run, plain = (
        partial(run_input_feeding_loop, graph_cache=captured),
        partial(run_input_feeding_loop, graph_cache=None),
    )
    shapes = [(17, 9, 11), (18, 9, 12), (64, 5, 5), (8, 30, 31), (8, 30, 30), (33, 3, 40), (2, 2, 2), (90, 9, 9)]
    for seed, shape in enumerate(shapes * 2):
        expected = run_decoder(plain, model, *shape, seed=seed)
        for found, other in zip(run_decoder(run, model, *shape, seed=seed), expected, strict=True):
            assert is_near(found, other, 1e-4)
    assert captured.pool.is_enabled
    assert len(captured.graphs) == 6


def test_backward_is_right_after_further_forward_passes() -> None:
    def gradients(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model.zero_grad()
        model.decoder.unroll = run
        source, target = torch.randint(4, 20, (6, 9)).cuda(), torch.randint(4, 30, (6, 8)).cuda()
        lengths = torch.tensor([9, 3, 0, 5, 9, 1]).cuda()
        passes = [model.loss(source, lengths, target, target) for _ in range(3)]  # each with its own dropout
        (passes[0] - 2 * passes[2]).backward()
        passes[1].backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    model, captured = make_luong(dropout=0.3), GraphedFunctionCache(min_calls=1)
    expected = gradients(partial(run_input_feeding_loop, graph_cache=None))
    for _ in range(2):
        for found, other in zip(
            gradients(partial(run_input_feeding_loop, graph_cache=captured)), expected, strict=True
        ):
            assert is_near(found, other, 1e-4)
    assert len(captured.graphs) == 1


def test_outputs_survive_the_next_replay() -> None:
    model, captured = make_luong(), GraphedFunctionCache(min_calls=1)
    run = partial(run_input_feeding_loop, graph_cache=captured)
    first = run_decoder(run, model, 5, 7, 9)
    before = [one.clone() for one in first]
    run_decoder(run, model, 5, 7, 9, seed=1)
    assert all(torch.equal(one, other) for one, other in zip(first, before, strict=True))


def test_graphs_are_freed_with_their_model() -> None:
    model = make_luong()
    assert model.decoder.unroll is run_luong_loop
    for seed in range(4):
        run_decoder(run_luong_loop, model, 5, 7, 9, seed=seed)
    assert len(GRAPH_CACHES[model.decoder].graphs) == 1
    with torch.no_grad():
        model.loss(*(torch.full((2, 3), 5).cuda(), torch.tensor([3, 2]).cuda(), *[torch.full((2, 4), 5).cuda()] * 2))
    captured = weakref.ref(GRAPH_CACHES[model.decoder])
    del model
    gc.collect()
    assert captured() is None


CAPTURED_LOOPS: list[tuple[str, dict[str, Any]]] = [
    ("bahdanau2015", {}),
    ("bahdanau2015", {"alignment": "local-p", "window": 3, "layers": 2, "cell": "lstm"}),
    ("xu2015-soft", {"layers": 2}),
    ("xu2015-hard", {"layers": 2}),
    ("luong2015-global", {"score": "concat", "cell": "gru", "layers": 2}),
    ("luong2015-global", {"alignment": "local-m", "window": 2, "residual": True, "layers": 2}),
]


@pytest.mark.parametrize(("bf16", "close"), [(False, 1e-4), (True, 5e-2)])
@pytest.mark.parametrize(("name", "options"), CAPTURED_LOOPS, ids=str)
def test_captured_loop_has_the_outputs_and_gradients_of_the_loop(
    name: str, options: dict[str, Any], bf16: bool, close: float
) -> None:
    torch.manual_seed(0)
    model: Any = build(name, 20, 30, **{"size": 24, "dropout": 0.3, **options}).cuda()
    randomize(model, 0.3)
    captured, feeds = GraphedFunctionCache(min_calls=1), name == "luong2015-global"
    plain: Any = model.decoder.unroll
    step_by_step = partial(run_graphed, drops_input=feeds, graph_cache=None)
    by_graph = partial(run_graphed, drops_input=feeds, graph_cache=captured)
    for seed, shape in enumerate([(17, 9, 11), (5, 7, 9), (18, 9, 11), (17, 9, 11)]):
        expected = run_decoder(step_by_step, model, *shape, bf16=bf16, seed=seed)
        found = run_decoder(by_graph, model, *shape, bf16=bf16, seed=seed)
        assert captured.pool.is_enabled
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert is_near(one, other, close), number
    assert len(captured.graphs) == 2
    alignment = model.decoder.attention.alignment
    if hasattr(alignment, "sigma"):
        alignment.sigma /= 2
        expected = run_decoder(step_by_step, model, 17, 9, 11, bf16=bf16)
        for one, other in zip(run_decoder(by_graph, model, 17, 9, 11, bf16=bf16), expected, strict=True):
            assert is_near(one, other, close)
    model.eval()
    expected = run_decoder(plain, model, 17, 9, 11, bf16=bf16)
    for one, other in zip(run_decoder(by_graph, model, 17, 9, 11, bf16=bf16), expected, strict=True):
        assert is_near(one, other, close)


@pytest.mark.parametrize("changes", [{}, {"loss.r_drop": 1.0}, {"training.accumulate": 2}], ids=str)
def test_training_with_graphs_has_the_reference_losses(
    changes: dict[str, Any], corpus: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    def losses(fast: str) -> list[float]:
        monkeypatch.setenv("REGARD_FAST", fast)
        options = {"training.precision": "fp32", "model.dropout": 0.0, "training.steps": 30, **changes}
        run = train_tiny("luong2015-global", corpus, tmp_path / fast, **options)
        return [row["loss"] for row in run.read_metrics()]

    assert losses("1") == pytest.approx(losses("0"), rel=1e-3)


def make_search_model(options: dict[str, Any], std: float = 0.5, seed: int = 0) -> Any:
    return accelerate(make_device_search_model(options, std, seed).float()).cuda()


def run_searches(
    model: Any, *lengths: int, seed: int = 1, bf16: bool = False, **options: Any
) -> list[list[list[Hypothesis]]]:
    """Return the hypotheses of the reference search and of the device search, first without, then with graphs.

    The graphs are captured by a search for other sources of the same lengths in reverse order.
    """
    these, others = make_sources(*lengths, seed=seed), make_sources(*lengths[::-1], seed=seed + 1)
    device_search, found = model.acceleration.search, []
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        for chosen, batch in (
            (None, these),
            (device_search, these),
            (device_search, others),
            (device_search, these),
        ):
            model.acceleration.search = chosen
            source, sizes = (each.cuda() for each in batch)
            found.append(search(model, source, sizes, **options))
    del found[2]
    assert device_search.attempts_left == device_beam_search.MAX_OUT_OF_MEMORY
    assert device_search.searchers
    assert all(one.buffers.pool.is_enabled for one in device_search.searchers.values())
    return found


def assert_close_hypotheses(found: list[list[Hypothesis]], expected: list[list[Hypothesis]], close: float) -> None:
    assert [[one.tokens for one in some] for some in found] == [[one.tokens for one in some] for some in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, rel=close, abs=close)
        assert (one.attention is None) == (other.attention is None)
        if one.attention is not None and other.attention is not None:
            assert abs(one.attention - other.attention).max() <= close


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("beam", [1, 4, 5])
@pytest.mark.parametrize("name", DEVICE_SEARCH_MODELS)
def test_device_search_finds_the_reference_hypotheses(name: str, beam: int, attention: bool) -> None:
    pytest.importorskip("triton")
    model = make_search_model(DEVICE_SEARCH_MODELS[name], std=0.3)
    options: dict[str, Any] = {"n_best": min(beam, 2), "max_length": 20, "attention": attention}
    reference, eager, with_graphs = run_searches(model, 9, 1, 5, 20, beam=beam, **options)
    assert_close_hypotheses(eager, reference, 1e-3)
    assert_close_hypotheses(with_graphs, eager, 1e-4)


def test_device_search_for_one_sentence_uses_kernels_for_few_rows() -> None:
    pytest.importorskip("triton")
    model = make_search_model({**LUONG, "size": 40}, std=0.3)
    for beam in (1, 3, 8):
        reference, eager, with_graphs = run_searches(model, 7, beam=beam, max_length=30)
        assert_close_hypotheses(eager, reference, 1e-3)
        assert_close_hypotheses(with_graphs, eager, 1e-4)


@pytest.mark.parametrize("form", [TRANSFORMER, LUONG], ids=str)
def test_device_search_in_bf16_is_as_good_as_the_reference(form: dict[str, Any]) -> None:
    """Words of nearly equal probability may be swapped, but the hypotheses have about the same score."""
    pytest.importorskip("triton")
    model = make_search_model(form, std=0.3)
    reference, eager, with_graphs = run_searches(model, *range(1, 21), bf16=True, beam=4, max_length=16)
    assert_close_hypotheses(with_graphs, eager, 1e-4)
    equal = [one[0].tokens == other[0].tokens for one, other in zip(eager, reference, strict=True)]
    assert sum(equal) >= 0.7 * len(equal)
    gaps = [abs(one[0].score - other[0].score) for one, other in zip(eager, reference, strict=True)]
    assert sum(gaps) / len(gaps) < 0.1


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("form", [TRANSFORMER, LUONG], ids=str)
def test_device_searches_of_many_shapes_share_memory_and_stay_exact(form: dict[str, Any], attention: bool) -> None:
    pytest.importorskip("triton")
    model = make_search_model(form, std=0.2)
    for seed in range(8):
        lengths = [1 + (7 * seed + 5 * row) % 33 for row in range(1 + 11 * seed % 40)]
        options: dict[str, Any] = {"beam": 1 + seed % 4, "length_penalty": 0.0, "attention": attention}
        reference, eager, with_graphs = run_searches(model, *lengths, seed=seed, **options)
        assert_close_hypotheses(eager, reference, 1e-3)
        assert_close_hypotheses(with_graphs, eager, 1e-4)
    device_search = model.acceleration.search.searchers[torch.float32]
    assert len({size.sentences for size, _ in device_search.workspaces}) > 3
    names = {name for workspace in device_search.workspaces.values() for name in workspace.replay.graphs}
    assert "steps" in names
    assert len(names) > 1, "graphs differ by the number of words that are read"


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("form", [TRANSFORMER, LUONG], ids=str)
def test_device_search_uses_changed_weights(form: dict[str, Any], bf16: bool) -> None:
    pytest.importorskip("triton")
    model = make_search_model(form)
    before = run_searches(model, 5, 3, bf16=bf16, beam=2, max_length=12)[2]
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    torch.optim.AdamW(model.parameters(), 0.5, fused=True).step()  # fused: it does not count up tensor versions
    reference, _, after = run_searches(model, 5, 3, bf16=bf16, beam=2, max_length=12)
    assert [some[0].log_prob for some in after] != [some[0].log_prob for some in before]
    if not bf16:
        assert_close_hypotheses(after, reference, 1e-3)
    for weight in model.parameters():  # at other addresses
        weight.data = -weight.data.clone()
    reference, _, after = run_searches(model, 5, 3, bf16=bf16, beam=2, max_length=12)
    if not bf16:
        assert_close_hypotheses(after, reference, 1e-3)


@pytest.mark.parametrize("change", CONSTANT_CHANGES)
def test_device_search_follows_changed_constants(change: Any) -> None:
    pytest.importorskip("triton")
    model = make_search_model({**TRANSFORMER, "heads": 3}, std=0.3)
    before = run_searches(model, 5, 3, beam=2, max_length=12)[2]
    change(model)
    reference, eager, after = run_searches(model, 5, 3, beam=2, max_length=12)
    assert [some[0].log_prob for some in after] != [some[0].log_prob for some in before]
    assert_close_hypotheses(eager, reference, 1e-3)
    assert_close_hypotheses(after, reference, 1e-3)


@pytest.mark.parametrize("lengths", [(3, 2), (3,)], ids=str)
@pytest.mark.parametrize("beam", [1, 2])
def test_device_search_reports_nan_weights(lengths: tuple[int, ...], beam: int) -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model = accelerate(build(source_size=20, target_size=10_000, **LUONG)).cuda().eval()
    run_searches(model, *lengths, beam=beam)
    with torch.no_grad():
        model.decoder.W_s.weight[5] = torch.nan
    source, sizes = (each.cuda() for each in make_sources(*lengths))
    with pytest.raises(ArithmeticError, match="at step 1 are NaN or inf"):
        search(model, source, sizes, beam=beam)


def test_failing_device_search_falls_back_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_search_model(LUONG)
    source, sizes = (each.cuda() for each in make_sources(3, 2))
    expected = search(model, source, sizes)

    def fail(*_: object) -> None:
        raise ValueError("no such kernel")

    monkeypatch.setattr(device_beam_search, "make_searcher", fail)
    model.acceleration.search.searchers.clear()
    for _ in range(3):
        assert_close_hypotheses(search(model, source, sizes), expected, 1e-3)
    messages = capsys.readouterr().err.splitlines()
    for message, fallback in zip(messages, ("PyTorch operations", "the reference search"), strict=True):
        assert message == (
            f"device search: decoding continues with {fallback}, more slowly: ValueError: no such kernel"
        )
    assert not model.acceleration.search.attempts_left


@pytest.mark.parametrize("options", [LUONG, TRANSFORMER], ids=["luong", "transformer"])
def test_search_without_triton_uses_graphs_of_pytorch_operations(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_search_model(options)
    source, sizes = (each.cuda() for each in make_sources(3, 2, 9))
    expected = search(model, source, sizes, beam=3, n_best=3)
    assert model.acceleration.search.searchers
    monkeypatch.setattr(device_beam_search, "load_ops", lambda: decoding_ops.TORCH_OPS)
    model.acceleration.search = device_beam_search.DeviceBeamSearch()
    for _ in range(3):  # the third one replays graphs
        assert_close_hypotheses(search(model, source, sizes, beam=3, n_best=3), expected, 1e-3)
    (workspace, *_) = next(iter(model.acceleration.search.searchers.values())).workspaces.values()
    assert workspace.ops is decoding_ops.TORCH_OPS


def test_search_without_memory_falls_back_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    model = make_search_model(LUONG)
    source, sizes = (each.cuda() for each in make_sources(3, 2))
    expected = search(model, source, sizes)

    def run_out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(DeviceSearcher, "__call__", run_out_of_memory)
        assert_close_hypotheses(search(model, source, sizes), expected, 1e-3)
    assert "the reference search, more slowly: out of memory" in capsys.readouterr().err
    assert not model.acceleration.search.searchers
    assert_close_hypotheses(search(model, source, sizes), expected, 1e-3)
    assert model.acceleration.search.searchers


def make_beam_state(A: int, W: int, taken: int, fill: Any) -> BeamState:
    """Return the state of a search after `taken` steps: some hypotheses have ended, some sentences are done."""
    state = BeamState(StaticBuffers(), torch.empty(0, device="cuda"), WorkspaceSize(A, W, 8, 0), False)
    limits, penalties = [5 + row % 20 for row in range(A)], [1 + n / 7 for n in range(40)]
    state.upload_request(SearchRequest(W, min(2, W), 3, limits, penalties, False, [8] * A))
    state.reset()
    state.steps_done.fill_(taken)
    state.log_probs.copy_(-5 * fill(A, W).abs().sort(1).values)
    state.num_ended.copy_(torch.arange(A) % 2 * (W > 1))
    state.scores[:, 0] = torch.where(state.num_ended > 0, -2.0 * fill(A).abs(), -torch.inf).double()
    return state


@pytest.mark.parametrize("taken", [0, 1, 16])
@pytest.mark.parametrize("sizes", [(1, 1, 50), (3, 1, 5000), (5, 4, 33), (64, 5, 4500), (2, 16, 100)], ids=str)
def test_search_kernels_choose_like_the_plain_operations(sizes: tuple[int, int, int], taken: int) -> None:
    pytest.importorskip("triton")
    from regard.fast.decoding.device import ops_triton as decoding_ops_triton

    A, W, V = sizes

    def run_search(parts: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        state = make_beam_state(A, W, taken, lambda *shape: torch.randn(*shape, device="cuda"))
        logits = 4 * torch.randn(A * W, V, device="cuda")
        logits[:, EOS] += 6
        for number in range(CHUNK_STEPS):
            parts.beam_update(state, parts.logits_topk(logits.roll(number, 0), state, number), number)
        log_probs = state.steps[:, 0].view(torch.float32)
        return [state.done, state.num_ended, state.scores, state.tokens, state.rows, log_probs, state.steps[:, 1:]]

    found, expected = run_search(decoding_ops_triton.TRITON_OPS), run_search(decoding_ops.TORCH_OPS)
    log_probs = expected[5]
    real = log_probs > -torch.inf
    for one, other in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[5], log_probs, rtol=1e-4, atol=1e-4)
    assert torch.equal(found[6].transpose(0, 1)[:, real], expected[6].transpose(0, 1)[:, real])


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 16, 2), (3, 4, 33, 3), (40, 5, 64, 8), (2, 1, 128, 1)], ids=str)
def test_kernels_of_a_transformer_step_have_the_plain_outputs(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, close: float
) -> None:
    pytest.importorskip("triton")
    from regard.fast.decoding.device import ops_triton as decoding_ops_triton

    A, W, d, heads = sizes
    D, R, S, capacity = d * heads, A * W, 70, 64

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    def run_step(parts: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        state = make_beam_state(A, W, 40, lambda *shape: torch.randn(*shape, device="cuda"))
        state.rows.copy_(torch.randint(0, W, (A, W)) + W * torch.arange(A)[:, None])
        state.tokens.copy_(torch.randint(0, 50, (A, W)))
        cache, words, positions = normal(capacity, R, 2 * D), normal(50, D).float(), normal(capacity, D).float()
        tables = torch.randint(0, W, (2, R, capacity), device="cuda").int()
        x = parts.embed_and_link(state, 3, TokenEmbedding(words, 1.5, positions), tables[0], tables[1])
        self_attended = parts.self_attention_step(normal(R, 3 * D), cache, tables[1], state, 3, heads)
        lengths = torch.randint(1, S + 1, (A,), device="cuda").int()
        cross_attended = parts.cross_attention(normal(R, D), normal(A, S, 4 * D)[..., D : 3 * D], lengths, heads)
        return [x, tables[1][:, :44], self_attended, cache, cross_attended]

    for found, expected in zip(run_step(decoding_ops_triton.TRITON_OPS), run_step(decoding_ops.TORCH_OPS), strict=True):
        assert is_near(found, expected, close)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1000), (2, 3, 33), (1, 8, 100), (9, 5, 40)], ids=str)
def test_kernels_of_a_recurrent_step_have_the_plain_outputs(
    sizes: tuple[int, int, int], concat: bool, dtype: torch.dtype, close: float
) -> None:
    pytest.importorskip("triton")
    from regard.fast.decoding.device import ops_triton as decoding_ops_triton

    A, W, H = sizes
    R, S, V = A * W, 21, 4000

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    def run_step(parts: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        state = make_beam_state(A, W, 0, lambda *shape: torch.randn(*shape, device="cuda"))
        rows, tokens = torch.randint(0, R, (R,), device="cuda"), torch.randint(0, 50, (R,), device="cuda")
        pieces = [RowGather(normal(50, 20), tokens), RowGather(normal(R, H), rows), RowGather(normal(R, H), None)]
        gates = LSTMWeights(normal(4 * H, 20 + 2 * H) / H**0.5, normal(4 * H))
        c, after, h, fed = normal(R, H).float(), normal(R, H).float(), normal(R, H), normal(R, H)
        parts.lstm_step(pieces, gates, c, rows, after, h)
        source = SourceMemory(normal(A, S, H) / H**0.5, normal(A, S, 24), torch.arange(A, device="cuda").int() % S + 1)
        weights = torch.zeros(R, S, device="cuda")
        context = parts.luong_attention(normal(R, H), source, normal(H) / H**0.5 if concat else None, weights)
        parts.attentional_state([RowGather(context, None), RowGather(h, None)], normal(H, 24 + H) / H**0.5, fed)
        found: TopK = parts.output_topk(normal(R, H), normal(V, H) / H**0.5, state, 0)
        top = found.block_max.amax(1, keepdim=True)
        norm = top + (found.block_sums * (found.block_max - top).exp()).sum(1, keepdim=True).log()
        return [after, h, weights, context, fed, norm, found.values.sort(1, descending=True).values[:, :W]]

    for found, expected in zip(run_step(decoding_ops_triton.TRITON_OPS), run_step(decoding_ops.TORCH_OPS), strict=True):
        assert is_near(found, expected, close)


def test_doctor_finds_the_fastest_implementation_of_every_part() -> None:
    parts = {part.part: part for part in diagnose_parts(torch.device("cuda")) if part.part != "--precision int8"}
    assert {name: part.reason for name, part in parts.items() if part.reason} == {}
    assert parts["search"].implementation == "device search, Triton kernels, CUDA graphs"
    assert "Triton" in parts["Transformer training"].implementation
    assert "Triton" in parts["Luong decoder in training"].implementation


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("limit", [0, 16, 64])
def test_attention_uses_other_kernels_where_a_tile_does_not_fit(
    limit: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs with less shared memory than tiles of more than `limit` tokens need."""
    pytest.importorskip("triton")
    from regard.fast.training.packed import ops, ops_triton
    from regard.fast.training.packed.batch import make_ragged

    launch, launched = ops_triton._launch_attention, []

    def launch_if_it_fits(kernel: Any, tensors: Any, strides: Any, queries: Any, keys: Any, *rest: Any) -> None:
        if max(queries.max_length, keys.max_length) > limit:
            raise RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376")
        launched.append(queries.max_length)
        launch(kernel, tensors, strides, queries, keys, *rest)

    for tried in (ops_triton._kernel_runs, ops_triton._flash_attention_runs):
        tried.cache_clear()
    monkeypatch.setattr(ops_triton, "_launch_attention", launch_if_it_fits)
    try:
        for longest, dtype in ((12, torch.bfloat16), (40, torch.float32), (60, torch.bfloat16), (200, torch.bfloat16)):
            torch.manual_seed(0)
            lengths = torch.tensor([longest, 3, longest // 2], device="cuda")
            words = make_ragged(lengths, int(lengths.sum()), longest)
            qkv = torch.randn(int(lengths.sum()), 3 * 64, device="cuda", dtype=dtype, requires_grad=True)
            results = []
            for attend in (ops_triton.self_attention, ops.self_attention):
                out = attend(qkv, words, 2, causal)
                results.append((out, *torch.autograd.grad(out.square().sum(), qkv)))
            torch.testing.assert_close(*results, atol=2e-2, rtol=2e-2)
    finally:
        for tried in (ops_triton._kernel_runs, ops_triton._flash_attention_runs):
            tried.cache_clear()
    assert set(launched) <= {1, 12, 16, 32, 40, 60, 64}
    assert max(launched, default=0) <= limit


SHARED_MEMORY_KIB = {75: 64, 86: 99, 89: 99}  # of a block: T4 and RTX 20; A10 and RTX 30; L4 and RTX 40
UNSUPPORTED_DTYPES = {75: {"*bf16"}, 86: set(), 89: set()}


@pytest.fixture(scope="module")
def launched_kernels() -> list[tuple[str, Any]]:
    """Train and search with models of usual sizes; return name and compiled form of each Triton kernel."""
    triton: Any = pytest.importorskip("triton")
    from regard.fast.kernels.triton import cross_entropy, decoding, packed_transformer, rnn

    names = {**vars(cross_entropy), **vars(decoding), **vars(packed_transformer), **vars(rnn)}
    kernels = {kernel.__name__: kernel for kernel in names.values() if isinstance(kernel, triton.JITFunction)}
    for kernel in kernels.values():
        kernel.device_caches.clear()  # what other tests launched
    for config in ("vaswani2017-base", "luong2015-global", "luong2015-local-p"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            torch.manual_seed(0)
            model: Any = build(config, 5000, 5000)
            model.criterion = CrossEntropy(label_smoothing=0.1, r_drop=1.0 if dtype == torch.float32 else 0.0)
            accelerate(model).cuda()
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                for longest in (12, 60, 120):
                    batch = make_batch([longest, 3], [longest, 5], vocabulary=5000)
                    model.train().loss_sum(*(tensor.cuda() for tensor in batch)).backward()
                for lengths, beam in (((7,), 1), ((9, 5, 12) * 20, 4)):
                    source, sizes = (each.cuda() for each in make_sources(*lengths))
                    search(model.eval(), source, sizes, beam=beam, max_length=8)
    return [
        (name, compiled)
        for name, kernel in kernels.items()
        for variants, *_ in kernel.device_caches.values()
        for compiled in variants.values()
    ]


@pytest.mark.parametrize("capability", SHARED_MEMORY_KIB)
def test_triton_kernels_compile_for_smaller_gpus_and_fit_their_shared_memory(
    capability: int, launched_kernels: list[tuple[str, Any]]
) -> None:
    """A tile of varlen attention may need more: each is tried before it is used."""
    triton: Any = pytest.importorskip("triton")

    def compile_kernel(name: str, launched: Any) -> tuple[str, int]:
        options = {option: getattr(launched.metadata, option) for option in ("num_warps", "num_stages")}
        target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
        compiled = triton.compile(launched.src, target, options)
        assert "cubin" in compiled.asm
        return name, compiled.metadata.shared

    supported = [
        (name, launched)
        for name, launched in launched_kernels
        if not UNSUPPORTED_DTYPES[capability] & {*launched.src.signature.values()}
    ]
    with ThreadPoolExecutor() as pool:
        sizes = list(pool.map(compile_kernel, *zip(*supported, strict=True)))
    too_large = {name for name, size in sizes if size > SHARED_MEMORY_KIB[capability] * 1024}
    assert too_large <= {"attention_varlen_fwd", "attention_varlen_bwd"}
    names = {name for name, _ in sizes}
    assert {"add_norm_bwd", "attention_varlen_bwd", "cross_entropy_kernel", "attention_bwd", "center_bwd"} <= names
    assert {"beam_update", "output_topk", "logits_topk", "self_attention_step", "lstm_step", "lstm_gates_fwd"} <= names
