"""Text in; text, scores and alignments out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import collate, cuts, padded
from regard.data.sentences import Examples, Sentences
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.runs import Run
from regard.search import Hypothesis, search
from regard.symbols import EOS
from regard.text import Tokenizers
from regard.translate.alignment import Alignment, Floats, align_words

BATCH_TOKENS = 4000


@dataclass(frozen=True)
class Translation:
    """One text and what became of it."""

    source: str
    text: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list)  # as the model wrote them, with EOS
    source_tokens: list[str] = field(default_factory=list)  # as the model read them, with EOS
    attention: Floats | None = None  # tokens × source tokens
    alignment: Alignment | None = None  # of words
    alternatives: list[Translation] = field(default_factory=list)  # the rest of the n best


class Translator:
    """One model, or several as an ensemble, with its vocabularies."""

    def __init__(self, models: Sequence[Seq2Seq], tokenizers: Tokenizers, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.models = [model.to(self.device).eval() for model in models]
        self.tokenizers = tokenizers

    def translate(
        self,
        texts: Sequence[str],
        beam: int = 5,
        n_best: int = 1,
        alignments: bool = True,
        length_penalty: float = 0.6,
        max_length: int | None = None,
    ) -> list[Translation]:
        """A translation of each text, in order; a text without words stays as it is."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        results = [Translation(text, text) for text in texts]
        encoded = [self.tokenizers.source.split(text) for text in texts]
        work = np.array([row for row, (ids, _) in enumerate(encoded) if ids], dtype=np.int64)
        sizes = np.array([len(ids) + 1 for ids, _ in encoded], dtype=np.int64)
        sentences = Sentences.of(ids for ids, _ in encoded)
        for rows in cuts(work[np.argsort(sizes[work], kind="stable")], sizes, max(1, BATCH_TOKENS // beam)):
            source, lengths = self.batch(sentences, rows)
            found = search(
                self.models,
                source,
                lengths,
                beam=beam,
                n_best=n_best,
                length_penalty=length_penalty,
                max_length=max_length,
            )
            for row, hypotheses in zip(rows.tolist(), found, strict=True):
                ids, words = encoded[row]
                made = [self.translation(texts[row], ids, words, hypothesis, alignments) for hypothesis in hypotheses]
                made[0].alternatives.extend(made[1:])
                results[row] = made[0]
        return results

    def batch(self, sentences: Sentences, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[Tensor, Tensor]:
        """Sources B,S with EOS and their lengths."""
        source, lengths = padded(sentences, rows, before=(), after=(EOS,))
        return source.to(self.device), lengths.to(self.device)

    def translation(
        self, text: str, ids: list[int], words: list[int], hypothesis: Hypothesis, alignments: bool
    ) -> Translation:
        """A hypothesis in words."""
        target = self.tokenizers.target
        made = [id for id in hypothesis.tokens if id != EOS]
        written = target.decode(made)
        alignment = None
        if alignments and hypothesis.attention is not None:
            alignment = align_words(hypothesis.attention, (text.split(), words), (written.split(), target.words(made)))
        return Translation(
            source=text,
            text=written,
            score=hypothesis.score,
            tokens=target.pieces(hypothesis.tokens),
            source_tokens=self.tokenizers.source.pieces([*ids, EOS]),
            attention=hypothesis.attention,
            alignment=alignment,
        )

    def align(self, pairs: Sequence[tuple[str, str]]) -> Iterator[Alignment | None]:
        """The alignment of each pair of texts, by making the model write the target; None where it has no attention."""
        source = [self.tokenizers.source.split(text) for text, _ in pairs]
        target = [self.tokenizers.target.split(text) for _, text in pairs]
        examples = Examples(Sentences.of(ids for ids, _ in source), Sentences.of(ids for ids, _ in target))
        looks: list[Floats | None] = [None] * len(pairs)
        for rows in cuts(np.argsort(examples.sizes, kind="stable"), examples.sizes, BATCH_TOKENS):
            for row, look in zip(rows.tolist(), self.look(examples, rows), strict=True):
                looks[row] = look
        for (source_text, target_text), (_, left), (_, right), look in zip(pairs, source, target, looks, strict=True):
            yield look if look is None else align_words(look, (source_text.split(), left), (target_text.split(), right))

    @torch.inference_mode()
    def look(self, examples: Examples, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[Floats | None]:
        """Attention of given targets, tokens × source tokens each, the mean of the models that have it."""
        batch = collate(examples, rows).to(self.device)
        attended = [
            model.decoder(model.encode(batch.source, batch.lengths), batch.target_in).attended for model in self.models
        ]
        dense = [look.dense(batch.source.shape[1]) for look in attended if look is not None]
        if not dense:
            return [None] * len(rows)
        weights = torch.stack(dense).mean(0).float().cpu().numpy()
        ends = zip(examples.target.lengths[rows] + 1, examples.source.lengths[rows] + 1, strict=True)
        return [weights[row, :targets, :sources] for row, (targets, sources) in enumerate(ends)]


def load(*runs: str | Path, device: str | torch.device | None = None) -> Translator:
    """The best model of a run, ready to translate; several runs with the same vocabularies are an ensemble."""
    if not runs:
        raise UserError("no run to load")
    tokenizers = [Run(Path(run)).tokenizers() for run in runs]
    for run, other in zip(runs, tokenizers, strict=True):
        for mine, its in zip(tokenizers[0], other, strict=True):
            if mine.size != its.size or mine.pieces(range(mine.size)) != its.pieces(range(its.size)):
                raise UserError(f"{runs[0]} and {run} have different vocabularies; an ensemble needs the same ones")
    models = [Run(Path(run)).model(own) for run, own in zip(runs, tokenizers, strict=True)]
    return Translator(models, tokenizers[0], None if device is None else torch.device(device))
