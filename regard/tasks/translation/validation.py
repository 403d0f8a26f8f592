"""How good the model is on the dev set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional as F

from regard.data.corpus import Pair
from regard.data.examples import Examples
from regard.data.ragged import Indices, Ragged
from regard.models import Seq2Seq
from regard.plot import heatmap
from regard.search import Floats, Hypothesis, search
from regard.symbols import EOS, NAMES, PAD
from regard.tasks.memory import in_lots, in_order
from regard.tasks.task import Validation
from regard.tasks.text_scores import choose_measure, score_texts
from regard.text import Tokenizers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5


class Sample(NamedTuple):
    """A sentence of the dev set as the model translates it now."""

    source: str
    reference: str
    translation: str
    source_tokens: Sequence[str] = ()
    tokens: Sequence[str] = ()
    attention: Floats | None = None  # tokens × source tokens

    def told(self) -> dict[str, str]:
        """Source, reference and translation."""
        return {"source": self.source, "reference": self.reference, "translation": self.translation}

    def picture(self) -> Figure | None:
        """The heat map."""
        return None if self.attention is None else heatmap(self.attention, self.source_tokens, self.tokens)


class Validator:
    """The dev set, encoded once: cross-entropy per token, its perplexity, greedy BLEU, and some sentences.

    BLEU counts words between spaces. If the target language has none (Chinese, Japanese, Thai and others), by the code
    `language` or by the script of the references, chrF is measured, too, and is what says which model is the best.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizers: Tokenizers,
        batch_tokens: int,
        translated: int,
        language: str | None = None,
    ) -> None:
        whole = [pair for pair in pairs if pair.source.strip() and pair.target.strip()]
        self.pairs = whole
        self.tokenizers = tokenizers
        self.batch_tokens = batch_tokens
        self.translated = min(translated, len(whole))
        self.references = [pair.target for pair in whole[: self.translated]]
        self.measure = choose_measure(self.references, language)
        self.examples = Examples(
            Ragged.of(tokenizers.source.encode(pair.source) for pair in whole),
            Ragged.of(tokenizers.target.encode(pair.target) for pair in whole),
        )

    def __call__(self, model: Seq2Seq, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        loss = self.loss(model, device)
        found = self.translate(model, device)
        model.train(training)
        texts = [self.tokenizers.target.decode(hypothesis.tokens) for hypothesis in found]
        samples = [self.sample(row, found[row], texts[row]) for row in range(min(SAMPLES, len(found)))]
        lowercase = self.tokenizers.target.lowercase  # what it cannot write is no mistake
        figures = score_texts(texts, [[reference] for reference in self.references], self.measure, lowercase)
        return Validation(loss, {"perplexity": math.exp(min(loss, 100.0)), **figures}, self.measure, samples)

    @torch.inference_mode()
    def loss(self, model: Seq2Seq, device: torch.device) -> float:
        """Cross-entropy per target token over the whole dev set, without label smoothing."""

        def summed(rows: Indices) -> tuple[float, float]:
            batch = self.examples.batch(rows).to(device)
            logits, target = model(batch.source, batch.lengths, batch.target_in).float(), batch.target_out
            total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
            return total.item(), (target != PAD).sum().item()

        found = in_lots(summed, self.examples.sizes, self.batch_tokens)
        return sum(total for total, _ in found) / max(1.0, sum(tokens for _, tokens in found))

    def translate(self, model: Seq2Seq, device: torch.device) -> list[Hypothesis]:
        """Greedy translations of the first `translated` sentences."""

        def best(rows: Indices) -> list[Hypothesis]:
            batch = self.examples.batch(rows).to(device)
            return [hypotheses[0] for hypotheses in search(model, batch.source, batch.lengths, beam=1)]

        return in_order(best, self.examples.sizes[: self.translated], self.batch_tokens)

    def sample(self, row: int, hypothesis: Hypothesis, text: str) -> Sample:
        """A sentence, its translation, and where the model looked."""
        pair, (source, target) = self.pairs[row], self.tokenizers
        read = [*source.pieces(self.examples.source[row].tolist()), NAMES[EOS]]
        return Sample(*pair, text, read, target.pieces(hypothesis.tokens), hypothesis.attention)
