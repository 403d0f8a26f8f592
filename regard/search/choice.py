"""Which hypotheses go on at a step."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Choice(NamedTuple):
    """For each of A sentences the hypotheses that were chosen; −inf: none in this place."""

    log_probs: Tensor  # A,beam; the best first
    parents: Tensor  # A,beam; the row that each extends
    tokens: Tensor  # A,beam; the token it extends it by


def best(reach: Tensor) -> Choice:
    """The `beam` best extensions of each sentence: log-probabilities A,beam,V of all of them."""
    sentences, beam, vocabulary = reach.shape
    log_probs, places = reach.view(sentences, -1).topk(beam, -1)
    first = beam * places.new_tensor(range(sentences))[:, None]
    return Choice(log_probs, places // vocabulary + first, places % vocabulary)
