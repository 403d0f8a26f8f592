"""Classification inference: label probabilities, and attention weights of hops, words and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.data.indexed_dataset import Indices
from regard.models import Classifier, ClassifierOutput, log_probs
from regard.plot import WeightedWords
from regard.search import Floats
from regard.tasks.base import Prediction
from regard.tasks.batched_inference import map_batches_in_order
from regard.tasks.classification.dataset import ClassificationDataset
from regard.tokenizers import LabelVocabulary, Tokenizer


class TextOutput(NamedTuple):
    """Log-probabilities of the labels of one text, and attention weights without padding."""

    log_probs: Floats  # (L,)
    weights: Floats | None  # (hops, tokens), or (sentences, tokens of the longest sentence)
    sentence_weights: Floats | None  # (sentences,)


@torch.inference_mode()
def run_classifier(
    model: Classifier, dataset: ClassificationDataset, device: torch.device, batch_tokens: int
) -> list[TextOutput]:
    """Return the output for each text, in order; the model must be in evaluation mode."""

    def classify_batch(rows: Indices) -> list[TextOutput]:
        batch = dataset.make_batch(rows).to(device)
        classified: ClassifierOutput = model(batch.ids, batch.lengths)
        return [
            _remove_padding(*pair) for pair in zip(_split_batch_outputs(classified), batch.lengths.cpu(), strict=True)
        ]

    return map_batches_in_order(classify_batch, dataset.sizes, batch_tokens)


def compute_cross_entropy(log_probs: Floats, labels: Indices) -> float:
    """Return the mean of −log p of the reference labels, given log-probabilities (N, L)."""
    return 0.0 - float(log_probs[np.arange(len(labels)), labels].mean(dtype=np.float64))


def _split_batch_outputs(classified: ClassifierOutput) -> list[TextOutput]:
    logits, weights, sentence_weights = classified
    rows = len(logits)
    scores = log_probs(logits).cpu().numpy()
    attention_weights = zip(_split_rows(weights, rows), _split_rows(sentence_weights, rows), strict=True)
    return [TextOutput(row, *weights_of_text) for row, weights_of_text in zip(scores, attention_weights, strict=True)]


def _split_rows(tensor: Tensor | None, rows: int) -> list[Floats] | list[None]:
    """Return the rows of a tensor, or None for each row."""
    return [None] * rows if tensor is None else list(tensor.float().cpu().numpy())


def _remove_padding(output: TextOutput, lengths: Tensor) -> TextOutput:
    if output.weights is None:
        return output
    if output.sentence_weights is None:
        return output._replace(weights=output.weights[:, : int(lengths)])
    count, longest = int((lengths > 0).sum()), int(lengths.max())
    weights, sentence_weights = output.weights[:count, :longest], output.sentence_weights[:count]
    return output._replace(weights=weights, sentence_weights=sentence_weights)


_MAX_SHOWN_HOPS = 3  # attention hops shown besides their mean


class AttentionView(Protocol):
    """Tokens of a text with their attention weights, if the model has attention."""

    def to_dict(self) -> dict[str, Any]:
        """Return tokens and weights for JSON."""
        ...

    def to_lines(self) -> list[WeightedWords]:
        """Return labelled lines of weighted words for plots."""
        ...


class HopAttentionView(NamedTuple):
    """Attention of one or more hops over the tokens of a text."""

    tokens: Sequence[str]
    weights: Floats | None  # (hops, tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return tokens, and a row of weights for each hop."""
        return {"tokens": self.tokens, "weights": None if self.weights is None else self.weights.tolist()}

    def to_lines(self) -> list[WeightedWords]:
        """Return the mean of the hops, and the hops with the highest single weights."""
        if self.weights is None or not self.tokens:
            return []
        strongest = np.argsort(-self.weights.max(1), kind="stable")[:_MAX_SHOWN_HOPS] if len(self.weights) > 1 else ()
        rows = {"mean": self.weights.mean(0)} | {f"hop {hop + 1}": self.weights[hop] for hop in strongest}
        return [
            WeightedWords(name, self.tokens, row.tolist(), darkest_weight=float(row.max()))
            for name, row in rows.items()
        ]


class HierarchicalAttentionView(NamedTuple):
    """Attention over the words of each sentence, and over the sentences."""

    tokens: Sequence[Sequence[str]]
    weights: Sequence[Sequence[float]] | None
    sentence_weights: Sequence[float] | None

    def to_dict(self) -> dict[str, Any]:
        """Return tokens and weights, sentence by sentence."""
        return {"tokens": self.tokens, "weights": self.weights, "sentence_weights": self.sentence_weights}

    def to_lines(self) -> list[WeightedWords]:
        """Return a line for each sentence, with the sentence's weight."""
        if self.weights is None or self.sentence_weights is None:
            return []
        rows = zip(self.tokens, self.weights, self.sentence_weights, strict=True)
        return [
            WeightedWords(str(number), tokens, weights, sentence_weight, max(weights))
            for number, (tokens, weights, sentence_weight) in enumerate(rows, 1)
        ]


@dataclass(frozen=True)
class ClassificationPrediction(Prediction):
    """The predicted label, the probabilities of all labels, and the attention weights."""

    label: str
    probabilities: Mapping[str, float]
    attention: AttentionView

    @property
    def probability(self) -> float:
        """Probability of the predicted label."""
        return self.probabilities[self.label]

    def to_text(self) -> str:
        """Return the label, a tab and its probability."""
        return f"{self.label}\t{self.probability:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """Return label, all probabilities, tokens and attention weights."""
        label_fields = {"label": self.label, "probability": self.probability, "probabilities": dict(self.probabilities)}
        return label_fields | self.attention.to_dict()

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return the attention weights as lines of words."""
        return self.attention.to_lines()


def make_classification_prediction(
    output: TextOutput,
    token_ids: Sequence[Sequence[int]],
    labels: LabelVocabulary,
    tokenizer: Tokenizer,
    is_hierarchical: bool,
) -> ClassificationPrediction:
    """Convert a model output to label names, probabilities and attention over tokens."""
    label_probabilities = np.exp(output.log_probs).tolist()
    probabilities = {labels.find_name(id): probability for id, probability in enumerate(label_probabilities)}
    attention = (
        _make_hierarchical_view(output, token_ids, tokenizer)
        if is_hierarchical
        else _make_hop_view(output, token_ids, tokenizer)
    )
    return ClassificationPrediction(labels.find_name(int(output.log_probs.argmax())), probabilities, attention)


def _make_hop_view(output: TextOutput, token_ids: Sequence[Sequence[int]], tokenizer: Tokenizer) -> HopAttentionView:
    return HopAttentionView(
        [token for ids in token_ids for token in tokenizer.convert_ids_to_tokens(ids)], output.weights
    )


def _make_hierarchical_view(
    output: TextOutput, token_ids: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> HierarchicalAttentionView:
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in token_ids]
    if output.weights is None or output.sentence_weights is None:
        return HierarchicalAttentionView(tokens, None, None)
    weights = [row[: len(ids)].tolist() for row, ids in zip(output.weights, token_ids, strict=True)]
    return HierarchicalAttentionView(tokens, weights, output.sentence_weights.tolist())
