"""Text in; text, scores and alignments out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import cuts, padded
from regard.data.sentences import Sentences
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.runs import Run
from regard.search import Hypothesis, Judged, Phrase, Rule, forced, sample, search
from regard.symbols import EOS
from regard.text import Tokenizers
from regard.translate import tags
from regard.translate.alignment import Alignment, align_words
from regard.translate.options import Options
from regard.translate.segments import Segment, segments
from regard.translate.translation import Translation, joined
from regard.translate.wording import ForbiddenWords, filled, looked_at, phrase, sequences, terms

BATCH_TOKENS = 4000
AT_ONCE = 512  # texts of a stream that are sorted by length together


class Piece(NamedTuple):
    """A segment on its way through the model."""

    segment: Segment
    ids: list[int]
    words: list[int]  # the word that each id is part of
    prefix: list[int]
    force: list[Phrase]


class Translator:
    """One model, or several as an ensemble, with its vocabularies.

    `limit`: a text of more tokens than this is cut at the ends of its sentences; None: never.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        tokenizers: Tokenizers,
        device: torch.device | None = None,
        limit: int | None = None,
    ) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.models = [model.to(self.device).eval() for model in models]
        self.tokenizers = tokenizers
        self.limit = limit

    def translate(
        self, texts: Sequence[str], beam: int = 5, n_best: int = 1, alignments: bool = True, **options: Any
    ) -> list[Translation]:
        """A translation of each text, in order; a text without words stays as it is. See `Options` for the rest."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        return self.chunk(texts, Options(beam=beam, n_best=n_best, alignments=alignments, **options))

    def stream(self, texts: Iterable[str], **options: Any) -> Iterator[Translation]:
        """Translations in order while the texts still come; only a few hundred are held at a time."""
        chosen, rest = Options(**options), iter(texts)
        while some := list(islice(rest, AT_ONCE)):
            yield from self.chunk(some, chosen)

    def chunk(self, texts: Sequence[str], options: Options) -> list[Translation]:
        """All texts together, batched by their lengths."""
        if not options.tags:
            return self.plain(texts, options)
        marked = [tags.parse(text) for text in texts]
        made = self.plain([one.plain for one in marked], dataclasses.replace(options, alignments=True))
        return [tagged(text, one, found) for text, one, found in zip(texts, marked, made, strict=True)]

    def plain(self, texts: Sequence[str], options: Options) -> list[Translation]:
        """Texts without tags."""
        cut = [segments(text, self.fits) for text in texts]
        pieces = [piece for some in cut for piece in self.prepared(some, options)]
        made = iter(self.pieces(pieces, options))
        return [
            joined(text, some, [next(made) for _ in some]) if some else Translation(text, text)
            for text, some in zip(texts, cut, strict=True)
        ]

    def fits(self, text: str) -> bool:
        """Whether a text is short enough to be translated in one piece."""
        return self.limit is None or len(self.tokenizers.source.encode(text)) <= self.limit

    def prepared(self, some: Sequence[Segment], options: Options) -> Iterator[Piece]:
        """The segments of a text: the first has the prefix, the longest what is to be forced."""
        target = self.tokenizers.target
        longest = max(range(len(some)), key=lambda number: len(some[number].text), default=0)
        for number, segment in enumerate(some):
            words = [*(options.force if number == longest else ()), *terms(options.glossary, segment.text)]
            prefix = target.encode(options.prefix) if number == 0 else []
            yield Piece(
                segment,
                *self.tokenizers.source.split(segment.text),
                prefix,
                [phrase(target, item) for item in words],
            )

    def pieces(self, pieces: Sequence[Piece], options: Options) -> list[Translation]:
        """A translation of each piece, in order."""
        results = [Translation(piece.segment.text, piece.segment.text) for piece in pieces]
        sizes = np.array([len(piece.ids) + 1 for piece in pieces], dtype=np.int64)
        work = np.flatnonzero(sizes > 1)
        width = options.n_best if options.sample else options.beam
        bans, rules = self.forbidden(options)
        for rows in cuts(work[np.argsort(sizes[work], kind="stable")], sizes, max(1, BATCH_TOKENS // width)):
            some = [pieces[row] for row in rows]
            for row, found in zip(rows.tolist(), self.find(some, options, bans, rules), strict=True):
                made = [self.translation(pieces[row], hypothesis, options) for hypothesis in found]
                made[0].alternatives.extend(made[1:])
                results[row] = made[0]
        return results

    def forbidden(self, options: Options) -> tuple[list[tuple[int, ...]], list[Rule]]:
        """Sequences of ids, and rules, that keep forbidden words out."""
        if not options.forbid:
            return [], []
        if self.tokenizers.target.word_ends() is None:
            return sequences(self.tokenizers.target, options.forbid), []
        return [], [ForbiddenWords(self.tokenizers.target, options.forbid)]

    def find(
        self, some: Sequence[Piece], options: Options, bans: Sequence[Sequence[int]], rules: Sequence[Rule]
    ) -> list[list[Hypothesis]]:
        """The targets of a batch."""
        source, lengths = self.batch([piece.ids for piece in some])
        try:
            if options.sample:
                return sample(
                    self.models,
                    source,
                    lengths,
                    samples=options.n_best,
                    temperature=options.temperature,
                    top_k=options.top_k,
                    top_p=options.top_p,
                    seed=options.seed,
                    max_length=options.max_length,
                    min_length=options.min_length,
                    rules=rules,
                    forbid=bans,
                )
            return search(
                self.models,
                source,
                lengths,
                beam=options.beam,
                n_best=options.n_best,
                length_penalty=options.length_penalty,
                coverage_penalty=options.coverage_penalty,
                max_length=options.max_length,
                min_length=options.min_length,
                no_repeat=options.no_repeat,
                prefix=[piece.prefix for piece in some],
                force=[piece.force for piece in some],
                forbid=bans,
                rules=rules,
            )
        except ValueError as error:
            raise UserError(str(error)) from error

    def batch(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Sources B,S with EOS and their lengths."""
        source, lengths = padded(Sentences.of(ids), np.arange(len(ids)), before=(), after=(EOS,))
        return source.to(self.device), lengths.to(self.device)

    def translation(self, piece: Piece, hypothesis: Hypothesis, options: Options) -> Translation:
        """A hypothesis in words."""
        target, text = self.tokenizers.target, piece.segment.text
        made = [id for id in hypothesis.tokens if id != EOS]
        written = target.decode(made)
        alignment = None
        source = text.split()
        if options.alignments and hypothesis.attention is not None:
            alignment = align_words(hypothesis.attention, (source, piece.words), (written.split(), target.words(made)))
        if options.replace_unknown and hypothesis.attention is not None:
            of_token = [source[word] for word in piece.words]
            words = looked_at(made, hypothesis.attention, of_token, options.dictionary)
            written = filled([written], words)[0]
            alignment = alignment and alignment._replace(target=filled(alignment.target, words))
        return Translation(
            text,
            written,
            hypothesis.score,
            target.pieces(hypothesis.tokens),
            self.tokenizers.source.pieces([*piece.ids, EOS]),
            hypothesis.attention,
            alignment,
        )

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[Judged]:
        """What the model thinks of given targets, each pair in one piece."""
        sources = [self.tokenizers.source.encode(text) for text, _ in pairs]
        targets = [[*self.tokenizers.target.encode(text), EOS] for _, text in pairs]
        longer = [max(len(source) + 1, len(target)) for source, target in zip(sources, targets, strict=True)]
        sizes = np.array(longer, dtype=np.int64)
        judged: dict[int, Judged] = {}
        for rows in cuts(np.argsort(sizes, kind="stable"), sizes, BATCH_TOKENS):
            source, lengths = self.batch([sources[row] for row in rows])
            found = forced(self.models, source, lengths, [targets[row] for row in rows], length_penalty=0.0)
            judged.update(zip(rows.tolist(), found, strict=True))
        return [judged[row] for row in range(len(pairs))]

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[Alignment | None]:
        """The alignment of each pair of texts, by making the model write the target; None where it has no attention."""
        return [self.aligned(pair, judged) for pair, judged in zip(pairs, self.judge(pairs), strict=True)]

    def aligned(self, pair: tuple[str, str], judged: Judged) -> Alignment | None:
        """The alignment of a pair that was judged."""
        look, (source, target) = judged.hypothesis.attention, pair
        if look is None:
            return None
        left, right = self.tokenizers.source.split(source)[1], self.tokenizers.target.split(target)[1]
        return align_words(look, (source.split(), left), (target.split(), right))


def tagged(text: str, marked: tags.Marked, made: Translation) -> Translation:
    """A translation, and its alternatives, with the tags of its source."""
    if made.alignment is None and made.tokens and marked.tags:
        raise UserError("this model has no attention, so nothing says where a tag belongs in its translations")
    links = made.alignment.pairs if made.alignment else []
    others = [tagged(text, marked, other) for other in made.alternatives]
    return dataclasses.replace(made, source=text, text=tags.restore(marked, made.text, links), alternatives=others)


def load(*runs: str | Path, device: str | torch.device | None = None) -> Translator:
    """The best model of a run, ready to translate; several runs with the same vocabularies are an ensemble."""
    if not runs:
        raise UserError("no run to load")
    opened = [Run(Path(run)) for run in runs]
    tokenizers = [run.tokenizers() for run in opened]
    for run, other in zip(runs, tokenizers, strict=True):
        for mine, its in zip(tokenizers[0], other, strict=True):
            if mine.size != its.size or mine.pieces(range(mine.size)) != its.pieces(range(its.size)):
                raise UserError(f"{runs[0]} and {run} have different vocabularies; an ensemble needs the same ones")
    models = [run.model(own) for run, own in zip(opened, tokenizers, strict=True)]
    limit = min(int(run.config()["data"]["max_length"]) for run in opened)
    return Translator(models, tokenizers[0], None if device is None else torch.device(device), limit)
