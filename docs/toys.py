"""Three small jobs on sentences of the synthetic corpus, for the pictures of the mechanisms that pool words.

Sentences are told apart by whether they ask and whether they deny; a blank is filled with a word of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from regard.nn import (
    AttentionOverAttention,
    GRUCell,
    HierarchicalAttention,
    LSTMCell,
    Recurrent,
    StructuredSelfAttention,
    prefix_mask,
)
from regard.plot.attention_overlay import WeightedWords, plot_weighted_words
from regard.plot.heatmap import write_figure
from regard.synthetic.translation import generate_corpus

SIZE, BATCH, BLANK = 48, 32, "____"
Sentence = list[str]


class Vocabulary:
    """Words and their numbers; 0 is padding."""

    def __init__(self, sentences: list[Sentence]) -> None:
        words = sorted({word for sentence in sentences for word in sentence} | {BLANK})
        self.ids = {word: number for number, word in enumerate(words, 1)}
        self.size = len(words) + 1

    def table(self, sentences: list[Sentence]) -> tuple[Tensor, Tensor]:
        """Ids B,S and lengths B."""
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        ids = torch.zeros(len(sentences), int(lengths.max()), dtype=torch.long)
        for row, sentence in enumerate(sentences):
            ids[row, : len(sentence)] = torch.tensor([self.ids[word] for word in sentence])
        return ids, lengths


def kind(sentence: Sentence) -> int:
    """2 if a sentence asks, 1 if it denies, else 0; the grammar has none that does both."""
    return 2 if sentence[-1] == "?" else int("not" in sentence)


def trained(model: nn.Module, loss: Callable[[np.random.Generator], Tensor], steps: int = 250) -> None:
    """A short training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    random = np.random.default_rng(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(random).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


class Reader(nn.Module):
    """Words as the states of a bidirectional network."""

    def __init__(self, vocabulary: Vocabulary, cell: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary.size, SIZE, padding_idx=0)
        self.recurrent = Recurrent(cell, SIZE, SIZE, bidirectional=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Ids B,S -> states B,S,2·SIZE and their mask."""
        return self.recurrent(self.words(ids), lengths)[0], prefix_mask(lengths, ids.shape[1])


def structured(sentences: list[Sentence], vocabulary: Vocabulary, out: Path) -> None:
    """Three hops over a sentence that denies and over one that asks."""
    reader, pool, output = (
        Reader(vocabulary, LSTMCell),
        StructuredSelfAttention(2 * SIZE, 32, 3),
        nn.Linear(6 * SIZE, 3),
    )
    model = nn.ModuleList((reader, pool, output))

    def loss(random: np.random.Generator) -> Tensor:
        some = [sentences[row] for row in random.integers(len(sentences), size=BATCH)]
        embedding, weights = pool(*reader(*vocabulary.table(some)))
        kinds = torch.tensor([kind(sentence) for sentence in some])
        return nn.functional.cross_entropy(output(embedding.flatten(1)), kinds) + 0.1 * pool.penalty(weights).mean()

    trained(model, loss)
    lines = []
    for wanted in (1, 2):
        shown = next(sentence for sentence in sentences if kind(sentence) == wanted)
        _, weights = pool(*reader(*vocabulary.table([shown])))
        lines += [WeightedWords(f"hop {hop + 1}", shown, row) for hop, row in enumerate(weights[0].tolist())]
    write_figure(plot_weighted_words(lines), out)


def hierarchical(sentences: list[Sentence], vocabulary: Vocabulary, out: Path) -> None:
    """Documents of four sentences: is there one that asks, is there one that denies?"""
    reader = Reader(vocabulary, GRUCell)
    between = Recurrent(GRUCell, 2 * SIZE, SIZE, bidirectional=True)
    pool, output = HierarchicalAttention(2 * SIZE, 32, between, 2 * SIZE), nn.Linear(2 * SIZE, 2)
    model = nn.ModuleList((reader, pool, output))

    def read(documents: list[list[Sentence]]) -> tuple[Tensor, Tensor, Tensor]:
        ids, lengths = vocabulary.table([sentence for document in documents for sentence in document])
        states, mask = reader(ids, lengths)
        shape = (len(documents), 4)
        return states.unflatten(0, shape), mask.unflatten(0, shape), torch.ones(shape, dtype=torch.bool)

    def loss(random: np.random.Generator) -> Tensor:
        documents = [[sentences[row] for row in random.integers(len(sentences), size=4)] for _ in range(BATCH)]
        has = [[any(kind(s) & bit for s in document) for bit in (1, 2)] for document in documents]
        return nn.functional.binary_cross_entropy_with_logits(
            output(pool(*read(documents)).vector), torch.tensor(has, dtype=torch.float32)
        )

    trained(model, loss)
    plain = [sentence for sentence in sentences if kind(sentence) == 0 and len(sentence) < 10]
    asks = next(sentence for sentence in sentences if kind(sentence) == 2 and len(sentence) < 10)
    denies = next(sentence for sentence in sentences if kind(sentence) == 1 and len(sentence) < 10)
    document = [plain[0], denies, plain[1], asks]
    found = pool(*read([document]))
    lines = [
        WeightedWords(
            f"sentence {number + 1}", sentence, found.word_weights[0, number, : len(sentence)].tolist(), weight
        )
        for number, (sentence, weight) in enumerate(zip(document, found.sentence_weights[0].tolist(), strict=True))
    ]
    write_figure(plot_weighted_words(lines), out)


def over_attention(sentences: list[Sentence], vocabulary: Vocabulary, out: Path) -> None:
    """Three sentences, then one of them with a blank: which word of the text fills it?"""
    document, query = Reader(vocabulary, GRUCell), Reader(vocabulary, GRUCell)
    pool = AttentionOverAttention()
    model = nn.ModuleList((document, query))

    def riddle(random: np.random.Generator) -> tuple[Sentence, Sentence, str]:
        some = [sentences[row] for row in random.integers(len(sentences), size=3)]
        asked = some[int(random.integers(3))]
        place = int(random.integers(1, len(asked) - 1))
        blank = [BLANK if number == place else word for number, word in enumerate(asked)]
        return [word for sentence in some for word in sentence], blank, asked[place]

    def weigh(riddles: list[tuple[Sentence, Sentence, str]]) -> Tensor:
        read = document(*vocabulary.table([text for text, _, _ in riddles]))
        asked = query(*vocabulary.table([blank for _, blank, _ in riddles]))
        return pool(read[0], asked[0], read[1], asked[1])  # type: ignore[no-any-return]

    def loss(random: np.random.Generator) -> Tensor:
        riddles = [riddle(random) for _ in range(BATCH)]
        weights = weigh(riddles)
        chances = [
            weights[row, [place for place, word in enumerate(text) if word == answer]].sum()
            for row, (text, _, answer) in enumerate(riddles)
        ]
        return -torch.stack(chances).clamp(min=1e-9).log().mean()

    trained(model, loss, steps=1000)
    random = np.random.default_rng(5)
    text, blank, _ = riddle(random)
    weights = weigh([(text, blank, "")])[0].tolist()
    ends = [place + 1 for place, word in enumerate(text) if word in ".?"]
    lines = [
        WeightedWords("text" if not start else "", text[start:end], weights[start:end])
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    write_figure(plot_weighted_words([*lines, WeightedWords("query", blank, [0.0] * len(blank))]), out)


def draw(folder: Path) -> None:
    """All three pictures."""
    torch.manual_seed(1)
    made = generate_corpus(train=3000, dev=10, test=10, seed=1)["train"]
    sentences = [pair.source.split() for pair in made]
    sentences = [sentence for sentence in sentences if len(sentence) < 13]
    vocabulary = Vocabulary(sentences)
    structured(sentences, vocabulary, folder / "structured.png")
    hierarchical(sentences, vocabulary, folder / "hierarchical.png")
    over_attention(sentences, vocabulary, folder / "over-attention.png")
