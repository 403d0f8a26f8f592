"""Linear-chain CRF against sums over all label sequences."""

from __future__ import annotations

from itertools import pairwise, product

import torch
from torch import Tensor

from regard.nn import LinearChainCRF

LABELS, LENGTHS = 3, torch.tensor([4, 2, 1])
CHOICES = torch.tensor([[1, 2, 0, 1], [2, 1, 0, 0], [1, 0, 0, 0]])


def make_crf() -> tuple[LinearChainCRF, Tensor]:
    """Return a CRF with random transitions, and scores."""
    torch.manual_seed(2)
    crf = LinearChainCRF(LABELS).double()
    torch.nn.init.normal_(crf.transitions)
    crf.requires_grad_(False)
    return crf, torch.randn(len(LENGTHS), 4, LABELS).double()


def score_sequences(crf: LinearChainCRF, scores: Tensor, length: int) -> dict[tuple[int, ...], float]:
    """Return the logarithm of the unnormalised probability of each label sequence."""
    return {
        labels: float(sum(scores[t, labels[t]] for t in range(length)))
        + float(sum(crf.transitions[pair] for pair in pairwise(labels)))
        for labels in product(range(LABELS), repeat=length)
    }


def test_marginals_are_sums_over_all_label_sequences() -> None:
    crf, scores = make_crf()
    log_marginals = crf(scores, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        by_labels = score_sequences(crf, scores[row], length)
        weights = torch.tensor(list(by_labels.values())).softmax(0).tolist()
        for t in range(length):
            expected = [sum(weights[n] for n, y in enumerate(by_labels) if y[t] == label) for label in range(LABELS)]
            torch.testing.assert_close(log_marginals[row, t].exp().float(), torch.tensor(expected))


def test_loss_is_that_of_whole_sequences() -> None:
    crf, scores = make_crf()
    expected = 0.0
    for row, length in enumerate(LENGTHS.tolist()):
        by_labels = score_sequences(crf, scores[row], length)
        total = torch.tensor(list(by_labels.values())).logsumexp(0)
        expected += float(total) - by_labels[tuple(CHOICES[row, :length].tolist())]
    assert abs(float(crf.loss_sum(scores, LENGTHS, CHOICES)) - expected) < 1e-4


def test_padding_changes_nothing_and_the_loss_has_a_gradient() -> None:
    crf, scores = make_crf()
    wider = torch.cat((scores, torch.full((3, 2, LABELS), 5.0)), 1)
    torch.testing.assert_close(crf(wider, LENGTHS)[0, :4], crf(scores, LENGTHS)[0])
    padded = torch.cat((CHOICES, torch.zeros(3, 2, dtype=torch.long)), 1)
    torch.testing.assert_close(crf.loss_sum(wider, LENGTHS, padded), crf.loss_sum(scores, LENGTHS, CHOICES))
    crf.requires_grad_().loss_sum(scores, LENGTHS, CHOICES).backward()  # type: ignore[no-untyped-call]
    assert crf.transitions.grad is not None
    assert crf.transitions.grad.abs().sum() > 0
