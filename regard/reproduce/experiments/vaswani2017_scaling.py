"""Experiment: scaled dot-product attention (Vaswani 2017, section 3.2.1): gradients with and without 1/√d_k."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn import Attention, Dot, Global, Memory, ScaledDot
from regard.reproduce.experiment import Claim, CurveChart, Experiment, ExperimentRow, MetricValues
from regard.reproduce.significance import expect_lower
from regard.reproduce.workspace import Workspace

KEY_SIZES = (4, 16, 64, 256, 1024)
KEY_COUNT, KEY_CLASSES, QUERY_COUNT, VALUE_SIZE = 16, 4, 64, 16
TRAINING_SIZES = {"small": (256, 150), "full": (512, 1000)}  # d_k and number of updates


def _build_scaling_rows(scale: str) -> list[ExperimentRow]:
    """Return the rows with and without the scale."""
    width, steps = TRAINING_SIZES[scale]
    options = {"width": width, "steps": steps}
    return [
        ExperimentRow("dot", (), {"score": "dot", **options}),
        ExperimentRow("scaled dot", (), {"score": "scaled", **options}),
    ]


def _make_attention(score: str) -> Attention:
    """Build global attention with a score."""
    return Attention(Dot() if score == "dot" else ScaledDot(), Global())


def _measure_scaling(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure the gradient of the scores and the entropy of the weights at each d_k, then a short training."""
    torch.manual_seed(1)
    by_width = [
        (width, *_measure_gradient_and_entropy(_make_attention(row.options["score"]), width)) for width in KEY_SIZES
    ]
    losses = _train_projections(_make_attention(row.options["score"]), row.options["width"], row.options["steps"])
    gradients = [[width, gradient] for width, gradient, _ in by_width]
    return {
        "gradients": gradients,
        "entropies": [[width, entropy] for width, _, entropy in by_width],
        "losses": [[step, loss] for step, loss in losses],
        "gradient_kept": gradients[-1][1] / gradients[0][1],
        "entropy": by_width[-1][2],
        "loss": losses[-1][1],
    }


def _measure_gradient_and_entropy(attention: Attention, width: int) -> tuple[float, float]:
    """Return gradient norm of the scores and entropy of the weights, for standard normal queries and keys."""
    query, keys = torch.randn(QUERY_COUNT, 1, width), torch.randn(QUERY_COUNT, KEY_COUNT, width)
    values = torch.randn(QUERY_COUNT, KEY_COUNT, VALUE_SIZE)
    scores = attention.score(query, keys, None).requires_grad_()
    weights = attention.alignment.weigh(scores, torch.ones(QUERY_COUNT, 1, KEY_COUNT, dtype=torch.bool), None)
    assert isinstance(weights, Tensor)
    (weights @ values).sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    entropy = -(weights * weights.clamp(min=1e-12).log()).sum(-1).mean()
    return scores.grad.norm(dim=-1).mean().item(), entropy.item()


def _train_projections(attention: Attention, width: int, steps: int) -> list[tuple[int, float]]:
    """Train W_q and W_k to attend to the keys of one of four classes; return (step, loss) pairs.

    The target is the mean of the values at the keys of the query's class, so the loss reaches W_q and W_k through the
    attention.
    """
    W_q, W_k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
    for layer in (W_q, W_k):
        nn.init.xavier_uniform_(layer.weight)
    optimizer = torch.optim.Adam([*W_q.parameters(), *W_k.parameters()], lr=1e-3)
    class_vectors, losses = torch.randn(KEY_CLASSES, width), []
    for step in range(1, steps + 1):
        key_classes, query_classes = (
            torch.arange(KEY_COUNT).expand(QUERY_COUNT, -1) % KEY_CLASSES,
            torch.randint(KEY_CLASSES, (QUERY_COUNT,)),
        )
        keys, values = (
            class_vectors[key_classes] + torch.randn(QUERY_COUNT, KEY_COUNT, width),
            torch.randn(QUERY_COUNT, KEY_COUNT, VALUE_SIZE),
        )
        context = attention(W_q(class_vectors[query_classes])[:, None], _make_memory(W_k(keys), values)).context[:, 0]
        target_weights = (key_classes == query_classes[:, None]).float() * (KEY_CLASSES / KEY_COUNT)
        loss = (context - (target_weights[:, None] @ values)[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % max(1, steps // 20) == 0:
            losses.append((step, loss.item()))
    return losses


def _make_memory(keys: Tensor, values: Tensor) -> Memory:
    """Build a memory without padding."""
    return Memory(keys, values, torch.ones(keys.shape[:2], dtype=torch.bool))


DOT_PRODUCT_SCALING = Experiment(
    name="scaling",
    title="The scale √d_k",
    source="Vaswani et al. 2017, section 3.2.1: for large d_k the products grow large and push the softmax to where "
    "its gradients are extremely small",
    description="16 positions, queries and keys of independent numbers with variance 1. `gradient_kept` is the "
    "gradient of the scores at d_k = 1024 divided by that at 4, `entropy` that of the weights at 1024 (uniform "
    "weights: 2.77), `loss` the mean squared error after a short training at d_k = 256 (full: 512) that has to "
    "average the values at four of 16 positions, which are of one class.",
    rows=_build_scaling_rows,
    measure=_measure_scaling,
    columns=("gradient_kept", "entropy", "loss"),
    claims=(
        Claim(
            "without the scale, the gradient shrinks more from d_k = 4 to d_k = 1024",
            expect_lower("gradient_kept", "dot", than="scaled dot"),
        ),
        Claim(
            "without the scale, the weights are on fewer positions (entropy)",
            expect_lower("entropy", "dot", than="scaled dot"),
        ),
        Claim("with the scale more is learnt (loss)", expect_lower("loss", "scaled dot", than="dot")),
    ),
    charts=(
        CurveChart("gradients", "Gradient of the scores", "d_k", "norm", log_scale=True),
        CurveChart("entropies", "Entropy of the weights", "d_k", "nats"),
        CurveChart("losses", "Learning", "updates", "mean square error"),
    ),
    cpu_minutes=0.2,
)
