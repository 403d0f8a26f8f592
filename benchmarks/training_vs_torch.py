"""Training steps of regard's models beside the same sizes in plain PyTorch modules.

    python -m benchmarks.training_vs_torch

Alternatives run in turns; what counts are the ratios. PyTorch's LSTM is compared with regard's loop of cells, its
Transformer with the whole model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import measure_in_turns
from regard.models import build
from regard.nn import LSTMCell, Recurrent

SENTENCES, WORDS, VOCABULARY, SIZE = 64, 16, 2000, 128
ROUNDS = 8


def make_random_ids() -> Tensor:
    """Return a batch of random sentences."""
    return torch.randint(4, VOCABULARY, (SENTENCES, WORDS))


def make_training_step(parameters: list[nn.Parameter], loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a function that makes one update: forward, backward and Adam."""
    optimizer = torch.optim.Adam(parameters)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def make_recipe_step(name: str, **overrides: object) -> Callable[[], None]:
    """Return the training step of a recipe."""
    model = build(name, VOCABULARY, VOCABULARY, size=SIZE, **overrides)
    source, lengths, target = make_random_ids(), torch.full((SENTENCES,), WORDS), make_random_ids()
    return make_training_step(list(model.parameters()), lambda: model.loss(source, lengths, target, target))


def make_torch_transformer_step() -> Callable[[], None]:
    """Return the training step of `torch.nn.Transformer` with embeddings and an output layer."""
    words, out = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, VOCABULARY)
    body = nn.Transformer(SIZE, 4, 2, 2, 4 * SIZE, 0.1, batch_first=True)
    source, target = make_random_ids(), make_random_ids()
    mask = nn.Transformer.generate_square_subsequent_mask(WORDS)

    def loss() -> Tensor:
        states = body(words(source), words(target), tgt_mask=mask, tgt_is_causal=True)
        return F.cross_entropy(out(states).flatten(0, 1), target.flatten())

    return make_training_step([*words.parameters(), *out.parameters(), *body.parameters()], loss)


def make_recurrent_layer_step(network: nn.Module, with_lengths: bool) -> Callable[[], None]:
    """Return the training step of one bidirectional LSTM layer."""
    x, lengths = torch.randn(SENTENCES, WORDS, SIZE), torch.full((SENTENCES,), WORDS)
    arguments = (x, lengths) if with_lengths else (x,)
    return make_training_step(list(network.parameters()), lambda: network(*arguments)[0].square().mean())


def main() -> None:
    """Print target words per second, and the speed relative to the first alternative of the group."""
    groups = {
        "Transformer, 2 + 2 layers": {
            "torch.nn.Transformer": make_torch_transformer_step(),
            "regard vaswani2017-base": make_recipe_step("vaswani2017-base", layers=2, heads=4, feedforward=4 * SIZE),
        },
        "bidirectional LSTM layer": {
            "torch.nn.LSTM": make_recurrent_layer_step(
                nn.LSTM(SIZE, SIZE, batch_first=True, bidirectional=True), False
            ),
            "regard.nn.Recurrent": make_recurrent_layer_step(Recurrent(LSTMCell, SIZE, SIZE, bidirectional=True), True),
        },
        "attention, recurrent": {
            "regard bahdanau2015": make_recipe_step("bahdanau2015"),
            "regard luong2015-global, 1 layer": make_recipe_step("luong2015-global", layers=1),
        },
    }
    for title, steps in groups.items():
        medians = {name: statistics.median(times) for name, times in measure_in_turns(steps, ROUNDS).items()}
        first = next(iter(medians.values()))
        print(f"{title} (d {SIZE}, {SENTENCES} × {WORDS} words, {torch.get_num_threads()} threads)")
        for name, median in medians.items():
            speed = SENTENCES * WORDS / median
            print(f"  {name:<34} {speed:10,.0f} words/s   {first / median:5.2f} ×")


if __name__ == "__main__":
    main()
