"""Attention that sums up a text, against loops in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.nn import (
    AttentionOverAttention,
    GRUCell,
    HierarchicalAttention,
    Recurrent,
    StructuredSelfAttention,
    prefix_mask,
)

Array = npt.NDArray[np.float64]
B, N, S, SIZE = 3, 4, 5, 6
LENGTHS = torch.tensor([5, 2, 0])


def softmax(scores: Array) -> Array:
    raised = np.exp(scores - scores.max())
    return np.asarray(raised / raised.sum())


def array(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float64)


def test_structured_self_attention() -> None:
    module = StructuredSelfAttention(SIZE, 4, 3).double()
    states, mask = torch.randn(B, S, SIZE, dtype=torch.float64), prefix_mask(LENGTHS, S)
    embedding, weights = module(states, mask)
    W1, W2 = array(module.W_s1.weight), array(module.W_s2.weight)
    for b, length in enumerate(LENGTHS.tolist()):
        A = np.zeros((3, S))
        if length:
            scores = W2 @ np.tanh(W1 @ array(states[b, :length]).T)
            A[:, :length] = np.stack([softmax(row) for row in scores])
        np.testing.assert_allclose(array(weights[b]), A, atol=1e-12)
        np.testing.assert_allclose(array(embedding[b]), A @ array(states[b]), atol=1e-12)
        penalty = np.linalg.norm(A @ A.T - np.eye(3), "fro") ** 2
        np.testing.assert_allclose(module.penalty(weights)[b].item(), penalty, atol=1e-12)
    assert [name for name, _ in module.named_parameters()] == ["W_s1.weight", "W_s2.weight"]


def summed(module: torch.nn.Module, states: Array) -> tuple[Array, Array]:
    W, b, u = (array(parameter) for parameter in (module.W.weight, module.W.bias, module.context))  # type: ignore[union-attr, arg-type]
    weights = softmax(np.tanh(states @ W.T + b) @ u)
    return weights @ states, weights


def test_hierarchical_attention() -> None:
    module = HierarchicalAttention(SIZE, 4).double()
    words = torch.randn(B, N, S, SIZE, dtype=torch.float64)
    lengths = torch.tensor([[5, 2, 1, 3], [4, 1, 0, 0], [0, 0, 0, 0]])
    word_mask = torch.arange(S) < lengths[..., None]
    document = module(words, word_mask, lengths > 0)
    for b in range(B):
        sentences = []
        for n in range(N):
            length = int(lengths[b, n])
            expected = np.zeros(S)
            if length:
                vector, weights = summed(module.words, array(words[b, n, :length]))
                sentences.append(vector)
                expected[:length] = weights
            np.testing.assert_allclose(array(document.word_weights[b, n]), expected, atol=1e-12)
        if sentences:
            vector, weights = summed(module.sentences, np.stack(sentences))
            np.testing.assert_allclose(array(document.vector[b]), vector, atol=1e-12)
            np.testing.assert_allclose(array(document.sentence_weights[b, : len(sentences)]), weights, atol=1e-12)
    assert not document.vector[2].any()


def test_sentences_may_be_encoded_in_between() -> None:
    encoder = Recurrent(GRUCell, SIZE, 5, bidirectional=True)
    module = HierarchicalAttention(SIZE, 4, encoder, 10)
    words, lengths = torch.randn(B, N, S, SIZE), torch.tensor([[5, 2, 1, 3], [4, 1, 0, 0], [3, 0, 0, 0]])
    mask = torch.arange(S) < lengths[..., None]
    document = module(words, mask, lengths > 0)
    assert document.vector.shape == (B, 10)
    alone = module(words[1:2, :2], mask[1:2, :2], lengths[1:2, :2] > 0)
    torch.testing.assert_close(alone.vector[0], document.vector[1])


def test_attention_over_attention() -> None:
    document, query = torch.randn(B, S, SIZE, dtype=torch.float64), torch.randn(B, N, SIZE, dtype=torch.float64)
    queries = torch.tensor([4, 2, 3])
    found = AttentionOverAttention()(document, query, prefix_mask(LENGTHS, S), prefix_mask(queries, N))
    for b, (length, asked) in enumerate(zip(LENGTHS.tolist(), queries.tolist(), strict=True)):
        expected = np.zeros(S)
        if length:
            M = array(document[b, :length]) @ array(query[b, :asked]).T
            alpha = np.stack([softmax(M[:, j]) for j in range(asked)], 1)
            beta = np.mean([softmax(M[i]) for i in range(length)], 0)
            expected[:length] = alpha @ beta
        np.testing.assert_allclose(array(found[b]), expected, atol=1e-12)
