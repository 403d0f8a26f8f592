"""Text in; text, scores and alignments out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import parse
from regard.data.batches import padded
from regard.data.order import cuts
from regard.data.ragged import Indices, Ragged
from regard.data.settings import DataSettings
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.runs import Run
from regard.search import (
    BeamSearch,
    Floats,
    Hypothesis,
    ImpossibleError,
    Judged,
    Ranking,
    forced,
    sample,
    search,
    search_among,
)
from regard.symbols import EOS
from regard.text import Tokenizers
from regard.text.sentences import sentences
from regard.text.tokenizer import check_unicode
from regard.translate import engines
from regard.translate.abreast import abreast, width
from regard.translate.alignment import Alignment, Tokens, align_words, following
from regard.translate.carrying import Whole, of_markup, of_text
from regard.translate.options import Options
from regard.translate.plan import Draft, Piece, Plan
from regard.translate.segments import Segment, segments
from regard.translate.shortlist import Shortlist
from regard.translate.translation import Translation
from regard.translate.wording import filled, looked_at

Done = Callable[[int, list[Hypothesis]], None]
Way = Callable[[Sequence["Piece"], "Plan", Tensor, Tensor], list[list[Hypothesis]]]

BATCH_TOKENS = 4000
GPU_TOKENS = 64_000  # a step takes a GPU as long for a few rows as for hundreds
PLENTY = 32_000  # tokens at once for a program that makes batches, and shares them out, by itself
AT_ONCE = 512  # texts of a stream that are sorted by length together


class Translator:
    """One model, or several as an ensemble, with its vocabularies.

    A line of more tokens than `limit` or of more sentences than `sentences` (None: any number), in the source's
    `language`, is cut at the ends of these.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        tokenizers: Tokenizers,
        device: torch.device | None = None,
        limit: int | None = None,
        sentences: int | None = None,
        language: str | None = None,
    ) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.models = [model.to(self.device).eval() for model in models]
        self.engines: Sequence[Any] = self.models  # what decodes; faster ones may take their place
        self.runtime: Any = None  # one that also searches, where nothing is asked for but the best
        self.shortlist: Shortlist | None = None  # of what sources may become, where the rest is not weighed
        self.tokenizers = tokenizers
        self.limit = limit
        self.most = math.inf if sentences is None else sentences
        self.language = language

    def translate(
        self, texts: Sequence[str], beam: int = 5, n_best: int = 1, alignments: bool = True, **options: Any
    ) -> list[Translation]:
        """A translation of each text, in order; a text without words stays as it is. See `Options` for the rest."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        return self.chunk(texts, self.plan(Options(beam=beam, n_best=n_best, alignments=alignments, **options)))

    def stream(self, texts: Iterable[str], at_once: int = AT_ONCE, **options: Any) -> Iterator[Translation]:
        """Translations in order while the texts still come; `at_once` of them are read and sorted together."""
        if isinstance(texts, str):
            raise TypeError("stream takes texts one after the other, not one text: stream([text])")
        return self.streamed(iter(texts), at_once, self.plan(Options(**options)))

    def streamed(self, texts: Iterator[str], at_once: int, plan: Plan) -> Iterator[Translation]:
        """The same, with a plan that was made."""
        while some := list(islice(texts, at_once)):
            yield from self.chunk(some, plan)

    def plan(self, options: Options) -> Plan:
        """What to do, checked: a word that cannot be spelled shows here, before anything is translated."""
        return Plan(options, self.tokenizers)

    def chunk(self, texts: Sequence[str], plan: Plan) -> list[Translation]:
        """All texts together, batched by their lengths."""
        draft = self.draft(texts, plan)
        return draft.finished(self.pieces(draft.pieces, plan.wishing(draft.wishes(plan.options))))

    def draft(self, texts: Sequence[str], plan: Plan) -> Draft:
        """The texts in pieces that the model can take."""
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"a text to translate is a str, not {type(text).__name__}: {text!r}"[:200])
            check_unicode(text)
        options = plan.options
        carry = of_markup if options.tags else of_text if options.addresses else Whole
        carried = list(map(carry, texts))
        plain = [text for one in carried for text in one.plain]
        split = partial(sentences, language=self.language)
        cut = [segments(text, self.fits, split, self.most) for text in plain]
        return Draft(carried, plain, cut, [piece for some in cut for piece in self.prepared(some, plan)])

    def fits(self, text: str) -> bool:
        """Whether a text is short enough to be translated in one piece."""
        return self.limit is None or len(self.tokenizers.source.encode(text)) <= self.limit

    def prepared(self, some: Sequence[Segment], plan: Plan) -> Iterator[Piece]:
        """The segments of a text: the first with words has the prefix, the longest what is to be forced."""
        spoken = [number for number, segment in enumerate(some) if segment.text]
        longest = max(spoken, key=lambda number: len(some[number].text), default=0)
        for number, segment in enumerate(some):
            yield Piece(
                segment,
                *self.tokenizers.source.split(segment.text),
                plan.prefix if number in spoken[:1] else [],
                [*(plan.force if number == longest else ()), *plan.glossary.of(segment.text)],
            )

    def pieces(self, pieces: Sequence[Piece], plan: Plan) -> list[Translation]:
        """A translation of each piece, in order."""
        options = plan.options
        found: dict[int, list[Hypothesis]] = {}
        sizes = np.array([len(piece.ids) + 1 for piece in pieces], dtype=np.int64)
        work = np.flatnonzero(sizes > 1)
        alone = np.array([self.left_alone(pieces[row], plan) for row in work.tolist()], dtype=np.bool_)
        tokens = GPU_TOKENS if self.device.type == "cuda" else BATCH_TOKENS
        room = max(1, tokens // (options.n_best if options.sample else options.beam))
        for some, most, by_itself in ((work[alone], PLENTY, True), (work[~alone], room, False)):
            lots = cuts(some[np.argsort(sizes[some], kind="stable")], sizes, most)[::-1]  # the last to end is short
            many = 1 if by_itself else self.side_by_side(len(lots), plan)
            who = self if many == 1 else self.single()
            way = who.found if by_itself else who.drawn if options.sample else who.searched
            find = partial(who.lot, pieces, plan, way)
            for rows, together in zip(lots, abreast(find, lots, many), strict=True):
                found.update(zip(rows.tolist(), together, strict=True))
        each = (found.get(row, []) for row in range(len(pieces)))
        return [self.written(piece, some, options) for piece, some in zip(pieces, each, strict=True)]

    def side_by_side(self, batches: int, plan: Plan) -> int:
        """How many batches are searched at a time: on a CPU several, where no chance and no training is in it."""
        alone = self.device.type != "cpu" or plan.options.sample or any(model.training for model in self.models)
        return 1 if alone else width(batches)

    def single(self) -> Translator:
        """The same with engines that take one thread each."""
        other = copy.copy(self)
        other.engines = [getattr(engine, "single", engine) for engine in self.engines]
        return other

    def lot(self, pieces: Sequence[Piece], plan: Plan, way: Way, rows: Indices) -> list[list[Hypothesis]]:
        """The targets of some of the pieces."""
        return self.find([pieces[row] for row in rows], plan, way)

    def find(self, some: Sequence[Piece], plan: Plan, way: Way) -> list[list[Hypothesis]]:
        """The targets of a batch of pieces that have words."""
        source, lengths = self.batch([[*plan.domain, *piece.ids] for piece in some])
        return [self.placed(hypotheses, plan) for hypotheses in way(some, plan, source, lengths)]

    def drawn(self, some: Sequence[Piece], plan: Plan, source: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Targets that are drawn from the model."""
        options = plan.options
        return sample(
            self.engines,
            source,
            lengths,
            samples=options.n_best,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            **plan.limits,
        )

    def searched(self, some: Sequence[Piece], plan: Plan, source: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Targets that are searched for, among what the batch's sources may become where there is a shortlist of it."""
        find: Callable[..., list[list[Hypothesis]]] = search
        if self.shortlist is not None and not plan.rules:
            find = partial(search_among, self.shortlist.allowed(source.flatten().tolist()))
        prefix, force = [piece.prefix for piece in some], [piece.force for piece in some]
        try:
            return find(self.engines, source, lengths, prefix=prefix, force=force, **plan.ranks, **plan.limits)
        except ImpossibleError as error:
            raise UserError(str(error)) from error

    def left_alone(self, piece: Piece, plan: Plan) -> bool:
        """Whether a piece is left to the program that searches by itself: nothing is asked but to find the best."""
        return self.runtime is not None and plan.plain and not (piece.prefix or piece.force)

    def found(self, some: Sequence[Piece], plan: Plan, source: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Targets that it finds."""
        options = plan.options
        ids = [row[:length] for row, length in zip(source.tolist(), lengths.tolist(), strict=True)]
        ranking = Ranking(options.length_penalty)
        found: list[list[Hypothesis]] = self.runtime.search(ids, options.beam, options.n_best, ranking, plan.looks)
        return found

    def roll(self, some: Sequence[Piece], plan: Plan, done: Done, more: Callable[[], Sequence[Piece]]) -> None:
        """Searches for pieces that have words, and for those that come in after any step: `more` gives them.

        `done` is told of each, by its number in the order in which they came, as soon as it is known.
        """
        searching = BeamSearch(self.engines, **plan.ranks, **plan.limits)
        while some or searching.open:
            if some:
                source, lengths = self.batch([[*plan.domain, *piece.ids] for piece in some])
                prefix, force = [piece.prefix for piece in some], [piece.force for piece in some]
                searching.join(source, lengths, prefix=prefix, force=force)
            for index, hypotheses in searching.step():
                done(index, self.placed(hypotheses, plan))
            some = more()

    def batch(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Sources B,S with EOS and their lengths."""
        source, lengths = map(torch.from_numpy, padded(Ragged.of(ids), np.arange(len(ids)), EOS))
        return source.to(self.device), lengths.to(self.device)

    def written(self, piece: Piece, found: Sequence[Hypothesis], options: Options) -> Translation:
        """What became of a piece: the best that was found, the others beside it; one without words stays as it is."""
        made = [self.translation(piece, hypothesis, options) for hypothesis in found]
        text = piece.segment.text
        best = made[0] if made else Translation(text, "" if piece.ids else text, ended=not piece.ids)
        best.alternatives.extend(made[1:])
        return best

    def translation(self, piece: Piece, hypothesis: Hypothesis, options: Options) -> Translation:
        """A hypothesis in words."""
        target, text, look = self.tokenizers.target, piece.segment.text, hypothesis.attention
        made = [id for id in hypothesis.tokens if id != EOS]
        written, source = target.decode(made), text.split()
        alignment = None
        if look is not None and (options.alignments or options.tags):
            read = Tokens(source, piece.words, ())
            alignment = align_words(look, read, Tokens(written.split(), target.words(made), target.pieces(made)))
        if options.replace_unknown:
            if look is None:
                raise UserError("this model has no attention, so nothing says which word an <unk> stands for")
            words = looked_at(made, look, [source[word] for word in piece.words], options.dictionary)
            written = filled([written], words)[0]
            alignment = alignment and alignment.respelled(filled(alignment.target, words))
        return Translation(
            text,
            written,
            hypothesis.score,
            target.pieces(hypothesis.tokens),
            self.tokenizers.source.pieces([*piece.ids, EOS]),
            look if options.alignments else None,
            alignment,
            hypothesis.tokens[-1] == EOS,
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
            judged.update(zip(rows.tolist(), map(self.seen, found), strict=True))
        return [judged[row] for row in range(len(pairs))]

    @property
    def after(self) -> bool:
        """Whether an alignment takes each word's look from the step after it, as the first model that looks has it."""
        looking = (model.decoder for model in self.models if "a_t" in model.decoder.order)
        return next((decoder.viewpoint.after for decoder in looking), False)

    def placed(self, hypotheses: list[Hypothesis], plan: Plan) -> list[Hypothesis]:
        """Hypotheses whose attention is that of their words."""
        return [placed(hypothesis, len(plan.domain), self.after) for hypothesis in hypotheses]

    def seen(self, judged: Judged) -> Judged:
        """A target that was judged, with the attention of its words."""
        return judged._replace(hypothesis=placed(judged.hypothesis, 0, self.after))

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[Alignment | None]:
        """The alignment of each pair of texts, by making the model write the target; None where it has no attention."""
        return [self.aligned(pair, judged) for pair, judged in zip(pairs, self.judge(pairs), strict=True)]

    def aligned(self, pair: tuple[str, str], judged: Judged) -> Alignment | None:
        """The alignment of a pair that was judged."""
        look = judged.hypothesis.attention
        return None if look is None else self.linked(pair, look)

    def linked(self, pair: tuple[str, str], look: Floats) -> Alignment:
        """The alignment of a pair, by attention over the tokens of both."""
        return align_words(look, *self.worded(pair))

    def worded(self, pair: tuple[str, str]) -> tuple[Tokens, Tokens]:
        """The words of both texts, and their tokens."""
        source, target = pair
        ids, words = self.tokenizers.target.split(target)
        read = Tokens(source.split(), self.tokenizers.source.split(source)[1], ())
        return read, Tokens(target.split(), words, self.tokenizers.target.pieces(ids))


def placed(hypothesis: Hypothesis, first: int, after: bool) -> Hypothesis:
    """A hypothesis whose attention leaves the first so many places of the source out, where no word stands.

    With `after` each token's is that of the step after it.
    """
    look = hypothesis.attention
    if look is None:
        return hypothesis
    return hypothesis._replace(attention=(following(look) if after else look)[:, first:])


def load(
    *runs: str | Path,
    device: str | torch.device | None = None,
    engine: str = engines.TORCH,
    precision: str | None = None,
    shortlist: bool = False,
) -> Translator:
    """The best model of a run, ready to translate; several runs with the same vocabularies are an ensemble.

    What decodes is an `engine` of `regard.translate.engines`, in a precision that it has; PyTorch and onnxruntime also
    by the `shortlist` of target tokens that `regard export` has put beside the run.
    """
    engines.check(engine, precision, shortlist)
    if not runs:
        raise UserError("no run to load")
    opened = [Run(Path(run)) for run in runs]
    for one in opened:
        task = one.config().get("task", "translate")
        if task != "translate":
            raise UserError(f"{one.folder} does not translate, its task is {task!r}: regard predict {one.folder}")
    tokenizers = [run.tokenizers() for run in opened]
    for run, other in zip(runs, tokenizers, strict=True):
        for mine, its in zip(tokenizers[0], other, strict=True):
            if mine.size != its.size or mine.pieces(range(mine.size)) != its.pieces(range(its.size)):
                raise UserError(
                    f"{runs[0]} and {run} have different vocabularies; an ensemble needs the same ones "
                    "(regard evaluate --compare has runs side by side)"
                )
    models = [run.model(own.sizes) for run, own in zip(opened, tokenizers, strict=True)]
    learnt = [parse(DataSettings, run.config()["data"], "data") for run in opened]
    translator = Translator(
        models,
        tokenizers[0],
        None if device is None else torch.device(device),
        min(data.longest or data.max_length for data in learnt),
        min(data.sentences or 1 for data in learnt),  # null: not counted; a model may leave a second sentence out
        learnt[0].source,
    )
    loaded = [engines.Opened(*each) for each in zip(opened, translator.models, tokenizers, strict=True)]
    if shortlist:
        translator.shortlist = engines.shortlisted(loaded)
    alone = engine == engines.AUTO and len(loaded) == 1 and not shortlist
    translator.runtime = engines.at_hand(precision, loaded[0]) if alone else None
    by = (engine, precision) if translator.runtime is None else (engines.TORCH, None)  # for all else that is asked
    translator.engines = [engines.engaged(*by, each) for each in loaded]
    if engine == engines.CTRANSLATE2:
        if len(loaded) > 1:
            raise UserError(f"the engine {engine} runs one model at a time, not an ensemble of {len(loaded)}")
        translator.runtime = engines.runtime(precision, loaded[0])
    return translator
