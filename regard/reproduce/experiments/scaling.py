"""Why the dot product is divided by √d_k: gradients, and what is learnt through them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn import Attention, Dot, Global, Memory, ScaledDot
from regard.reproduce.experiment import Claim, Curves, Experiment, Row, Values
from regard.reproduce.lab import Lab
from regard.reproduce.verdict import less

WIDTHS = (4, 16, 64, 256, 1024)
PLACES, KINDS, BATCH, SEEN = 16, 4, 64, 16  # places to look at, kinds of them, queries at once, numbers seen there
LEARNING = {"small": (256, 150), "full": (512, 1000)}  # d_k, and updates


def rows(scale: str) -> list[Row]:
    """With and without the scale."""
    width, steps = LEARNING[scale]
    options = {"width": width, "steps": steps}
    return [Row("dot", (), {"score": "dot", **options}), Row("scaled dot", (), {"score": "scaled", **options})]


def attention(score: str) -> Attention:
    """A look at all places."""
    return Attention(Dot() if score == "dot" else ScaledDot(), Global())


def measure(lab: Lab, row: Row) -> Values:
    """At each width the gradient of the scores and how even the weights are; then a short training."""
    torch.manual_seed(1)
    looked = [(width, *first_look(attention(row.options["score"]), width)) for width in WIDTHS]
    losses = learnt(attention(row.options["score"]), row.options["width"], row.options["steps"])
    gradients = [[width, gradient] for width, gradient, _ in looked]
    return {
        "gradients": gradients,
        "entropies": [[width, entropy] for width, _, entropy in looked],
        "losses": [[step, loss] for step, loss in losses],
        "gradient_kept": gradients[-1][1] / gradients[0][1],
        "entropy": looked[-1][2],
        "loss": losses[-1][1],
    }


def first_look(attention: Attention, width: int) -> tuple[float, float]:
    """Queries and keys of independent numbers with variance 1: the gradient of the scores, and the weights' entropy."""
    query, keys = torch.randn(BATCH, 1, width), torch.randn(BATCH, PLACES, width)
    seen = torch.randn(BATCH, PLACES, SEEN)
    scores = attention.score(query, keys, None).requires_grad_()
    weights = attention.alignment.weigh(scores, torch.ones(BATCH, 1, PLACES, dtype=torch.bool), None)
    assert isinstance(weights, Tensor)
    (weights @ seen).sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    entropy = -(weights * weights.clamp(min=1e-12).log()).sum(-1).mean()
    return scores.grad.norm(dim=-1).mean().item(), entropy.item()


def learnt(attention: Attention, width: int, steps: int) -> list[tuple[int, float]]:
    """The mean of what is seen at places of one kind, of four: W_q and W_k are learnt, the loss comes through it."""
    W_q, W_k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
    for layer in (W_q, W_k):
        nn.init.xavier_uniform_(layer.weight)
    optimizer = torch.optim.Adam([*W_q.parameters(), *W_k.parameters()], lr=1e-3)
    looks, losses = torch.randn(KINDS, width), []
    for step in range(1, steps + 1):
        kinds, asked = torch.arange(PLACES).expand(BATCH, -1) % KINDS, torch.randint(KINDS, (BATCH,))
        things, seen = looks[kinds] + torch.randn(BATCH, PLACES, width), torch.randn(BATCH, PLACES, SEEN)
        context = attention(W_q(looks[asked])[:, None], memory(W_k(things), seen)).context[:, 0]
        right = (kinds == asked[:, None]).float() * (KINDS / PLACES)
        loss = (context - (right[:, None] @ seen)[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % max(1, steps // 20) == 0:
            losses.append((step, loss.item()))
    return losses


def memory(keys: Tensor, values: Tensor) -> Memory:
    """All places are real."""
    return Memory(keys, values, torch.ones(keys.shape[:2], dtype=torch.bool))


SCALING = Experiment(
    name="scaling",
    title="The scale √d_k",
    source="Vaswani et al. 2017, section 3.2.1: for large d_k the products grow large and push the softmax to where "
    "its gradients are extremely small",
    about="16 places, queries and keys of independent numbers with variance 1. `gradient_kept` is the gradient of the "
    "scores at d_k = 1024 as a share of that at 4, `entropy` that of the weights at 1024 (even weights: 2.77), `loss` "
    "the mean square error after a short training at d_k = 256 (full: 512) that has to average what is seen at four "
    "places of 16, which are of one kind.",
    rows=rows,
    measure=measure,
    columns=("gradient_kept", "entropy", "loss"),
    claims=(
        Claim(
            "without the scale less is left of the gradient at d_k = 4 when d_k is 1024",
            less("gradient_kept", "dot", than="scaled dot"),
        ),
        Claim("without the scale the weights are on fewer places (entropy)", less("entropy", "dot", than="scaled dot")),
        Claim("with the scale more is learnt (loss)", less("loss", "scaled dot", than="dot")),
    ),
    charts=(
        Curves("gradients", "Gradient of the scores", "d_k", "norm", logarithmic=True),
        Curves("entropies", "Entropy of the weights", "d_k", "nats"),
        Curves("losses", "Learning", "updates", "mean square error"),
    ),
    minutes=0.2,
)
