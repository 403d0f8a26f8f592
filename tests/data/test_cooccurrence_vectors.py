"""Word vectors from co-occurrence counts."""

from __future__ import annotations

import random

import torch

from regard.data.dataset import RaggedArray
from regard.data.word_vectors import learn_word_vectors
from regard.special_tokens import SPECIAL_TOKENS, UNK

DOG, CAT, RED, BLUE, THE, RUNS, UNSEEN = range(len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + 7)


def learn(size: int = 4) -> torch.Tensor:
    rng = random.Random(3)
    texts = [[THE, rng.choice((RED, BLUE)), rng.choice((DOG, CAT)), RUNS, *rng.choice(([], [UNK]))] for _ in range(300)]
    return learn_word_vectors(RaggedArray.from_rows(texts), UNSEEN + 1, size, seed=1)


def test_words_with_the_same_neighbours_have_similar_vectors() -> None:
    vectors = torch.nn.functional.normalize(learn())
    similarity = vectors @ vectors.T
    assert similarity[DOG, CAT] > 0.9
    assert similarity[RED, BLUE] > 0.9
    assert similarity[DOG, RED] < 0.5


def test_unseen_words_and_special_tokens_have_no_vector() -> None:
    vectors = learn()
    assert vectors.shape == (UNSEEN + 1, 4)
    assert vectors.abs().sum(1).gt(0).tolist() == [id in range(DOG, UNSEEN) for id in range(UNSEEN + 1)]


def test_vectors_are_the_same_each_time_and_leave_the_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    torch.testing.assert_close(learn(), learn(), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert learn(size=50).shape[1] == 50, "more than there are words"
