"""Beam search over anything that has `start`, `step` and `select`; a beam of 1 is greedy search.

A hypothesis that ends leaves the beam, which is narrower by one from then on (Sutskever 2014, section 3.2). A sentence
is done when its beam is empty, at its length limit, or when nothing still open could come in among the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.models import Seq2Seq
from regard.search.ensemble import Ensemble
from regard.search.hypothesis import Hypothesis, penalised
from regard.symbols import BOS, EOS, PAD

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass
class Trail:
    """How each row of each step came about, to walk back from a hypothesis' end to its beginning."""

    parents: list[Ints] = field(default_factory=list)  # row at step t -> the row at step t−1 that it extends …
    tokens: list[Ints] = field(default_factory=list)  # … and the token it was extended by
    attention: list[Floats] = field(
        default_factory=list
    )  # row at step t -> weights over the source, for its next token

    def back(self, row: int, token: int, source_length: int) -> tuple[list[int], Floats | None]:
        """Tokens and attention of the hypothesis that extends `row` of the newest step by `token`."""
        tokens, looks = [token], []
        for step in range(len(self.parents), -1, -1):
            if self.attention:
                looks.append(self.attention[step][row, :source_length])
            if step:
                tokens.append(int(self.tokens[step - 1][row]))
                row = int(self.parents[step - 1][row])
        return tokens[::-1], np.stack(looks[::-1]) if looks else None


@dataclass(frozen=True)
class Options:
    """How to search."""

    beam: int
    n_best: int
    length_penalty: float


@dataclass
class Sentence:
    """One source of the batch while it is searched."""

    length: int
    limit: int
    width: int  # hypotheses that may still be open
    ended: list[Hypothesis] = field(default_factory=list)
    cut: list[Hypothesis] = field(default_factory=list)

    def best(self, n_best: int) -> list[Hypothesis]:
        """The best first; those that were cut off only where none ended. Among equals the first found comes first."""
        return sorted(self.ended or self.cut, key=lambda hypothesis: -hypothesis.score)[:n_best]

    def settled(self, best_open: float, options: Options) -> bool:
        """Whether no open hypothesis can come in among the best: a log-probability only ever falls."""
        if len(self.ended) < options.n_best:
            return False
        hope = max(penalised(best_open, length, options.length_penalty) for length in (1, self.limit))
        return self.best(options.n_best)[-1].score >= hope


@torch.inference_mode()
def search(
    model_or_models: Seq2Seq | Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    *,
    beam: int = 5,
    max_length: int | None = None,
    n_best: int = 1,
    length_penalty: float = 0.6,
) -> list[list[Hypothesis]]:
    """The `n_best` targets for each source, the best first.

    Source ids B,S with lengths B, EOS included, as `model.encode` takes them. `max_length` counts EOS; where it is None
    a sentence may grow to twice its source and ten more. PAD and BOS are never produced.
    """
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best must be between 1 and the beam: n_best {n_best}, beam {beam}")
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length must be at least 1, not {max_length}")
    models = list(model_or_models) if isinstance(model_or_models, Sequence) else [model_or_models]
    sentences = [Sentence(length, max_length or 2 * length + 10, beam) for length in lengths.tolist()]
    if sentences:
        with resting(models):
            run(Ensemble(models), source, lengths, sentences, Options(beam, n_best, length_penalty))
    return [sentence.best(n_best) for sentence in sentences]


@contextmanager
def resting(models: Sequence[Seq2Seq]) -> Iterator[None]:
    """Search is no training: no dropout in here, and each model as it was afterwards."""
    training = [model for model in models if getattr(model, "training", False)]
    for model in training:
        model.eval()
    try:
        yield
    finally:
        for model in training:
            model.train()


def run(models: Ensemble, source: Tensor, lengths: Tensor, sentences: list[Sentence], options: Options) -> None:
    """Searches all sentences together and leaves in each what was found.

    A sentence has `beam` rows as long as it is in the batch; those that hold no open hypothesis stand at −inf.
    """
    device, beam = source.device, options.beam
    rows = torch.arange(len(sentences), device=device).repeat_interleave(beam)
    states = models.select(models.start(source, lengths), rows)
    tokens = torch.full_like(rows, BOS)
    reached = torch.full((len(sentences), beam), -torch.inf, device=device)  # log-probability of what is open
    reached[:, 0] = 0.0
    trail, active = Trail(), sentences
    for step in range(1, max(sentence.limit for sentence in sentences) + 1):
        log_probs, states, attention = models.step(states, tokens, source.shape[1])
        if attention is not None:
            trail.attention.append(attention.float().cpu().numpy())
        log_probs[:, [PAD, BOS]] = -torch.inf
        reach = (reached.flatten()[:, None] + log_probs).view(len(active), -1)
        top, places = reach.topk(beam, -1)
        first = torch.arange(len(active), device=device)[:, None] * beam
        parents, extensions = places // log_probs.shape[1] + first, places % log_probs.shape[1]
        widths = torch.tensor([sentence.width for sentence in active], device=device)
        goes_on = (torch.arange(beam, device=device) < widths[:, None]) & (extensions != EOS)
        harvest(active, top, parents, extensions, trail, step, options)
        keep = [index for index, sentence in enumerate(active) if sentence.width]
        if not keep:
            return
        active = [active[index] for index in keep]
        reached = top.masked_fill(~goes_on, -torch.inf)[keep]
        rows, tokens = parents[keep].flatten(), extensions[keep].flatten()
        trail.parents.append(rows.cpu().numpy())
        trail.tokens.append(tokens.cpu().numpy())
        states = models.select(states, rows)


def harvest(
    active: list[Sentence],
    top: Tensor,
    parents: Tensor,
    extensions: Tensor,
    trail: Trail,
    step: int,
    options: Options,
) -> None:
    """Takes up what ends at this step and narrows each beam by it; a sentence that is done has no width left."""
    log_probs, rows, tokens = top.tolist(), parents.tolist(), extensions.tolist()
    if any(math.isnan(row[0]) for row in log_probs):
        raise ArithmeticError(f"the model's probabilities at step {step} are not numbers: its weights are damaged")
    for index, sentence in enumerate(active):
        best_open = -math.inf
        for place in range(sentence.width):
            log_prob, row, token = log_probs[index][place], rows[index][place], tokens[index][place]
            if log_prob == -math.inf:
                break
            if token != EOS and step < sentence.limit:
                best_open = max(best_open, log_prob)
                continue
            path, attention = trail.back(row, token, sentence.length)
            found = Hypothesis(path, log_prob, penalised(log_prob, step, options.length_penalty), attention)
            (sentence.ended if token == EOS else sentence.cut).append(found)
        sentence.width = options.beam - len(sentence.ended)
        if best_open == -math.inf or sentence.settled(best_open, options):
            sentence.width = 0
