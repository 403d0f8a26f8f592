"""What a model says of texts, batch by batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.ragged import Indices
from regard.models import Classified, Classifier, log_probs
from regard.search import Floats
from regard.tasks.classification.texts import Texts
from regard.tasks.memory import in_order


class Output(NamedTuple):
    """Of one text the log-probability of each label, and where the model looked; padding is gone."""

    log_probs: Floats  # L
    weights: Floats | None  # hops × tokens, or sentences × tokens of the longest
    sentence_weights: Floats | None  # sentences


@torch.inference_mode()
def outputs(model: Classifier, texts: Texts, device: torch.device, batch_tokens: int) -> list[Output]:
    """What a model that is not being trained says of each text, in order."""

    def of(rows: Indices) -> list[Output]:
        batch = texts.batch(rows).to(device)
        classified: Classified = model(batch.ids, batch.lengths)
        return [trimmed(*one) for one in zip(apart(classified), batch.lengths.cpu(), strict=True)]

    return in_order(of, texts.sizes, batch_tokens)


def cross_entropy(scores: Floats, right: Indices) -> float:
    """The mean of −log p of the right labels, of log-probabilities N,L."""
    return 0.0 - float(scores[np.arange(len(right)), right].mean(dtype=np.float64))


def apart(classified: Classified) -> list[Output]:
    """A batch's outputs, text by text."""
    logits, weights, sentence_weights = classified
    rows = len(logits)
    scores = log_probs(logits).cpu().numpy()
    looks = zip(listed(weights, rows), listed(sentence_weights, rows), strict=True)
    return [Output(row, *look) for row, look in zip(scores, looks, strict=True)]


def listed(tensor: Tensor | None, rows: int) -> list[Floats] | list[None]:
    """The rows of a tensor, or as many times nothing."""
    return [None] * rows if tensor is None else list(tensor.float().cpu().numpy())


def trimmed(output: Output, lengths: Tensor) -> Output:
    """Without what stands for padding."""
    if output.weights is None:
        return output
    if output.sentence_weights is None:
        return output._replace(weights=output.weights[:, : int(lengths)])
    count, longest = int((lengths > 0).sum()), int(lengths.max())
    weights, sentence_weights = output.weights[:count, :longest], output.sentence_weights[:count]
    return output._replace(weights=weights, sentence_weights=sentence_weights)
