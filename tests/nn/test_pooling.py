"""Attention that pools a text into vectors, against loops in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.oracles import Array, softmax, to_array

from regard.nn import (
    AttentionOverAttention,
    GRUCell,
    HierarchicalAttention,
    MaxPooling,
    MeanPooling,
    Recurrent,
    StructuredSelfAttention,
    prefix_mask,
)

B, N, S, SIZE = 3, 4, 5, 6
LENGTHS = torch.tensor([5, 2, 0])


pytestmark = pytest.mark.usefixtures("seed")


def test_structured_self_attention_follows_its_equations() -> None:
    module = StructuredSelfAttention(SIZE, 4, 3).double()
    states, mask = torch.randn(B, S, SIZE, dtype=torch.float64), prefix_mask(LENGTHS, S)
    embedding, weights = module(states, mask)
    W1, W2 = to_array(module.W_s1.weight), to_array(module.W_s2.weight)
    for b, length in enumerate(LENGTHS.tolist()):
        A = np.zeros((3, S))
        if length:
            scores = W2 @ np.tanh(W1 @ to_array(states[b, :length]).T)
            A[:, :length] = np.stack([softmax(row) for row in scores])
        np.testing.assert_allclose(to_array(weights[b]), A, atol=1e-12)
        np.testing.assert_allclose(to_array(embedding[b]), A @ to_array(states[b]), atol=1e-12)
        penalty = np.linalg.norm(A @ A.T - np.eye(3), "fro") ** 2
        np.testing.assert_allclose(module.penalty(weights)[b].item(), penalty, atol=1e-12)
    assert [name for name, _ in module.named_parameters()] == ["W_s1.weight", "W_s2.weight"]


def pool(module: torch.nn.Module, states: Array) -> tuple[Array, Array]:
    W, b, u = (to_array(parameter) for parameter in (module.W.weight, module.W.bias, module.context))  # type: ignore[union-attr, arg-type]
    weights = softmax(np.tanh(states @ W.T + b) @ u)
    return weights @ states, weights


def test_hierarchical_attention_follows_its_equations() -> None:
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
                vector, weights = pool(module.words, to_array(words[b, n, :length]))
                sentences.append(vector)
                expected[:length] = weights
            np.testing.assert_allclose(to_array(document.word_weights[b, n]), expected, atol=1e-12)
        if sentences:
            vector, weights = pool(module.sentences, np.stack(sentences))
            np.testing.assert_allclose(to_array(document.vector[b]), vector, atol=1e-12)
            np.testing.assert_allclose(to_array(document.sentence_weights[b, : len(sentences)]), weights, atol=1e-12)
    assert not document.vector[2].any()


def test_a_sentence_encoder_needs_its_output_size() -> None:
    with pytest.raises(ValueError, match="together or not at all"):
        HierarchicalAttention(SIZE, 4, Recurrent(GRUCell, SIZE, 5))
    with pytest.raises(ValueError, match="together or not at all"):
        HierarchicalAttention(SIZE, 4, sentence_size=5)


def test_mean_and_max_pooling_ignore_padding_and_are_zero_without_words() -> None:
    states, mask = torch.randn(B, S, SIZE, dtype=torch.float64) - 3, prefix_mask(LENGTHS, S)
    mean, mean_weights = MeanPooling()(states, mask)
    highest, max_weights = MaxPooling()(states, mask)
    assert mean_weights is max_weights is None
    for b, length in enumerate(LENGTHS.tolist()):
        words = to_array(states[b, :length])
        np.testing.assert_allclose(to_array(mean[b]), words.mean(0) if length else np.zeros(SIZE))
        np.testing.assert_allclose(to_array(highest[b]), words.max(0) if length else np.zeros(SIZE))


def test_hierarchical_attention_may_encode_the_sentences() -> None:
    encoder = Recurrent(GRUCell, SIZE, 5, bidirectional=True)
    module = HierarchicalAttention(SIZE, 4, encoder, 10)
    words, lengths = torch.randn(B, N, S, SIZE), torch.tensor([[5, 2, 1, 3], [4, 1, 0, 0], [3, 0, 0, 0]])
    mask = torch.arange(S) < lengths[..., None]
    document = module(words, mask, lengths > 0)
    assert document.vector.shape == (B, 10)
    alone = module(words[1:2, :2], mask[1:2, :2], lengths[1:2, :2] > 0)
    torch.testing.assert_close(alone.vector[0], document.vector[1])


def test_attention_over_attention_follows_its_equations() -> None:
    document, query = torch.randn(B, S, SIZE, dtype=torch.float64), torch.randn(B, N, SIZE, dtype=torch.float64)
    queries = torch.tensor([4, 2, 3])
    masks = prefix_mask(LENGTHS, S), prefix_mask(queries, N)
    found = AttentionOverAttention()(document, query, *masks)
    weights, importance = AttentionOverAttention().forward_with_query_weights(document, query, *masks)
    assert torch.equal(weights, found)
    for b, (length, query_length) in enumerate(zip(LENGTHS.tolist(), queries.tolist(), strict=True)):
        expected, expected_importance = np.zeros(S), np.zeros(N)
        if length:
            M = to_array(document[b, :length]) @ to_array(query[b, :query_length]).T
            alpha = np.stack([softmax(M[:, j]) for j in range(query_length)], 1)
            beta = np.mean([softmax(M[i]) for i in range(length)], 0)
            expected[:length], expected_importance[:query_length] = alpha @ beta, beta
        np.testing.assert_allclose(to_array(importance[b]), expected_importance, atol=1e-12)
        np.testing.assert_allclose(to_array(found[b]), expected, atol=1e-12)
