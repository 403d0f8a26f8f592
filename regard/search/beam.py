"""Beam search over anything that has `start`, `step` and `select`; a beam of 1 is greedy search.

A hypothesis that ends leaves the beam, which is narrower by one from then on (Sutskever 2014, section 3.2). A sentence
is done when its beam is empty, at its length limit, or when nothing still open could come in among the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.search.choice import Choice, best
from regard.search.ensemble import Ensemble
from regard.search.frontier import Frontier
from regard.search.phrases import Phrase, Phrases, Progress, shortest
from regard.search.ranking import LengthPenalty, Ranking
from regard.search.rules import ImpossibleError, Prefix, Rule, standing
from regard.search.sentence import Sentence, unsearched
from regard.search.shortcut import shortcut

T = TypeVar("T")


def search(
    model_or_models: Seq2Seq | Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    *,
    beam: int = 5,
    max_length: int | None = None,
    n_best: int = 1,
    length_penalty: LengthPenalty = 0.6,
    coverage_penalty: float = 0.0,
    min_length: int = 1,
    no_repeat: int | None = None,
    prefix: Sequence[Sequence[int]] | None = None,
    force: Sequence[Sequence[Phrase | Sequence[int]]] | None = None,
    forbid: Sequence[Sequence[int]] = (),
    rules: Sequence[Rule] = (),
    attention: bool = True,
) -> list[list[Hypothesis]]:
    """The `n_best` targets for each source, the best first.

    Source ids B,S with lengths B, EOS included, as `model.encode` takes them; several models are an ensemble.

    - `max_length`, `min_length` count EOS; where `max_length` is None a target may grow to twice its source, what is
      given and forced, and ten more. PAD and BOS are never produced.
    - `length_penalty`, `coverage_penalty`: see `Ranking`.
    - `no_repeat`: so many tokens in a row never come twice.
    - `prefix`: the first tokens of each target. `force`: phrases that each target must hold, somewhere.
    - `forbid`: sequences of tokens that no target holds. `rules`: those of one's own.
    - `attention`: False spares the trouble where nobody wants to know where the model looked.
    """
    searching = BeamSearch(
        model_or_models,
        beam=beam,
        max_length=max_length,
        n_best=n_best,
        length_penalty=length_penalty,
        coverage_penalty=coverage_penalty,
        min_length=min_length,
        no_repeat=no_repeat,
        forbid=forbid,
        rules=rules,
        attention=attention,
    )
    given, forced = per_source(prefix, len(lengths), "prefix"), per_source(force, len(lengths), "force")
    bare = not (coverage_penalty or no_repeat or forbid or rules or any(given) or any(forced))
    quick = searching.shortcut(source, lengths) if bare else None
    if quick is not None:
        return quick
    searching.join(source, lengths, prefix=prefix, force=force)
    found: list[list[Hypothesis]] = [[] for _ in lengths]
    while searching.open:
        for index, hypotheses in searching.step():
            found[index] = hypotheses
    return found


class BeamSearch:
    """The same, a step at a time; further sources may come in between any two steps.

    Sources are numbered in the order in which they come in.
    """

    def __init__(
        self,
        model_or_models: Seq2Seq | Sequence[Seq2Seq],
        *,
        beam: int = 5,
        max_length: int | None = None,
        n_best: int = 1,
        length_penalty: LengthPenalty = 0.6,
        coverage_penalty: float = 0.0,
        min_length: int = 1,
        no_repeat: int | None = None,
        forbid: Sequence[Sequence[int]] = (),
        rules: Sequence[Rule] = (),
        attention: bool = True,
    ) -> None:
        if not 1 <= n_best <= beam:
            raise ValueError(f"n_best must be between 1 and the beam: n_best {n_best}, beam {beam}")
        self.max_length = max_length
        self.min_length = min_length
        self.beam = Beam(beam, n_best)
        self.count = 0  # of sources that ever came in
        self.frontier = Frontier(
            Ensemble(model_or_models),
            self.beam,
            Ranking(length_penalty, coverage_penalty),
            standing(min_length, forbid, no_repeat, rules),
            attention or bool(coverage_penalty),
        )

    @property
    def open(self) -> int:
        """Sources whose targets are not known yet."""
        return sum(len(cohort.sentences) for cohort in self.frontier.cohorts)

    @torch.inference_mode()
    def join(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        prefix: Sequence[Sequence[int]] | None = None,
        force: Sequence[Sequence[Phrase | Sequence[int]]] | None = None,
    ) -> None:
        """Takes sources B,S in, as `search` does."""
        batch = len(lengths)
        given = per_source(prefix, batch, "prefix")
        forced = [[phrased(item) for item in some] for some in per_source(force, batch, "force")]
        pairs = list(zip(given, forced, strict=True))
        more = [len(first) + sum(len(phrase.tokens) for phrase in some) for first, some in pairs]
        sentences = unsearched(lengths, self.max_length, self.min_length, more, self.count)
        for sentence, (first, some) in zip(sentences, pairs, strict=True):
            needed = shortest(first, some)
            if some and needed >= sentence.limit:
                raise ImpossibleError(
                    f"{needed} tokens to force do not fit, with EOS, into max_length {sentence.limit}"
                )
        begun = Prefix(given, [sentence.limit for sentence in sentences], source.device)
        for sentence, some in zip(sentences, forced, strict=True):
            self.beam.phrases.add(sentence.index, some)
        self.frontier.join(source, lengths, sentences, begun)
        self.count += batch

    def shortcut(self, source: Tensor, lengths: Tensor) -> list[list[Hypothesis]] | None:
        """All of it at once for these sources, where there is a faster way; None where there is none."""
        return shortcut(
            self.frontier.models,
            self.frontier.ranking,
            source,
            lengths,
            beam=self.beam.rows,
            n_best=self.beam.n_best,
            max_length=self.max_length,
            min_length=self.min_length,
            attention=self.frontier.look,
        )

    @torch.inference_mode()
    def step(self) -> list[tuple[int, list[Hypothesis]]]:
        """One step of all that is open: the sources, by their numbers, whose targets are known with it."""
        return [(sentence.index, self.beam.found(sentence)) for sentence in self.frontier.step()]


class Beam:
    """Keeps the best; a chooser for a `Frontier`."""

    def __init__(self, rows: int, n_best: int) -> None:
        self.rows = rows
        self.n_best = n_best
        self.phrases = Phrases(rows)
        self.open_at_first = 1  # all rows of a sentence begin as the same hypothesis

    def choose(self, reached: Tensor, log_probs: Tensor, active: Sequence[Sentence]) -> Choice:
        """The best extensions, as many as the beam has places for beside those that have ended."""
        forced = [sentence.index for sentence in active] if self.phrases.phrases else []
        if forced:
            self.phrases.close(log_probs, forced)
        choice = best(reached, log_probs)
        widths = [self.rows - len(sentence.ended) for sentence in active]
        if forced:
            reach = reached[..., None] + log_probs.view(*reached.shape, -1)
            choice = self.phrases.choose(reach, choice, forced, widths)
        if min(widths) == self.rows:
            return choice
        device = reached.device
        outside = torch.arange(self.rows, device=device) >= torch.tensor(widths, device=device)[:, None]
        return choice._replace(log_probs=choice.log_probs.masked_fill(outside, -torch.inf))

    def settled(self, sentence: Sentence, best_open: float, ranking: Ranking) -> bool:
        """Whether no open hypothesis can come in among the best."""
        if len(sentence.ended) < self.n_best:
            return False
        return sentence.best()[self.n_best - 1].score >= ranking.hope(best_open, sentence.limit)

    def found(self, sentence: Sentence) -> list[Hypothesis]:
        """The best first; where all were cut off, those first that have the most of what was to be forced."""
        best, phrases = sentence.best(), self.phrases.drop(sentence.index)
        if phrases:
            best.sort(key=lambda hypothesis: -Progress.of(hypothesis.tokens, phrases).bank(phrases))
        return best[: self.n_best]


def phrased(item: Phrase | Sequence[int]) -> Phrase:
    """A phrase, also where it was given as its tokens alone."""
    return item if isinstance(item, Phrase) else Phrase(tuple(item))


def per_source(given: Sequence[Sequence[T]] | None, batch: int, name: str) -> Sequence[Sequence[T]]:
    """What was given for each source of the batch."""
    if given is None:
        return [()] * batch
    if len(given) != batch:
        raise ValueError(f"{name} has {len(given)} entries for {batch} sources; there is one for each")
    return given
