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

from regard.config import parse_settings
from regard.data.batch import pad_with_end_id
from regard.data.indexed_dataset import Indices, RaggedArray
from regard.data.sampler import split_by_tokens
from regard.data.settings import DataSettings
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.runs import Run
from regard.search import (
    BeamSearch,
    Floats,
    Hypothesis,
    ScoredTarget,
    Scorer,
    SearchOptions,
    UnsatisfiableConstraintError,
    sample,
    score_targets,
    search,
    search_restricted,
)
from regard.special_tokens import EOS
from regard.tokenizers import Tokenizers
from regard.tokenizers.sentence_splitter import split_sentences
from regard.tokenizers.tokenizer import check_unicode
from regard.translate.backends import base
from regard.translate.backends.threads import choose_worker_count, map_in_threads
from regard.translate.lexical_options import find_unknown_replacements, replace_unknown
from regard.translate.options import CompiledOptions, EncodedSegment, Options, PreparedTexts
from regard.translate.protected_spans import PlainText, protect_markup, protect_urls
from regard.translate.segmentation import Segment, Translation, split_into_segments
from regard.translate.shortlist import Shortlist
from regard.translate.word_alignment import Alignment, TokenizedWords, align_words, shift_to_next_step

OnFinished = Callable[[int, list[Hypothesis]], None]
DecodeBatch = Callable[[Sequence["EncodedSegment"], "CompiledOptions", Tensor, Tensor], list[list[Hypothesis]]]

BATCH_TOKENS = 4000
GPU_BATCH_TOKENS = 64_000  # a step takes a GPU as long for a few rows as for hundreds
SEARCH_BACKEND_TOKENS = 32_000  # tokens at once for a program that makes batches, and shares them out, by itself
STREAM_CHUNK_SIZE = 512  # texts of a stream that are sorted by length together


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
        max_source_tokens: int | None = None,
        max_sentences: int | None = None,
        language: str | None = None,
    ) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.models = [model.to(self.device).eval() for model in models]
        self.decoding_models: Sequence[Any] = self.models  # what decodes; faster ones may take their place
        self.search_backend: Any = None  # one that also searches, where nothing is asked for but the best
        self.shortlist: Shortlist | None = None  # of what sources may become, where the rest is not weighed
        self.tokenizers = tokenizers
        self.max_source_tokens = max_source_tokens
        self.max_sentences = math.inf if max_sentences is None else max_sentences
        self.language = language

    def translate(
        self, texts: Sequence[str], beam: int = 5, n_best: int = 1, alignments: bool = True, **options: Any
    ) -> list[Translation]:
        """A translation of each text, in order; a text without words stays as it is. See `Options` for the rest."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        return self.translate_chunk(
            texts, self.compile_options(Options(beam=beam, n_best=n_best, alignments=alignments, **options))
        )

    def stream(
        self, texts: Iterable[str], chunk_size: int = STREAM_CHUNK_SIZE, **options: Any
    ) -> Iterator[Translation]:
        """Translations in order while the texts still come; `at_once` of them are read and sorted together."""
        if isinstance(texts, str):
            raise TypeError("stream takes texts one after the other, not one text: stream([text])")
        return self._stream_chunks(iter(texts), chunk_size, self.compile_options(Options(**options)))

    def _stream_chunks(self, texts: Iterator[str], chunk_size: int, compiled: CompiledOptions) -> Iterator[Translation]:
        """The same, with a plan that was made."""
        while some := list(islice(texts, chunk_size)):
            yield from self.translate_chunk(some, compiled)

    def compile_options(self, options: Options) -> CompiledOptions:
        """What to do, checked: a word that cannot be spelled shows here, before anything is translated."""
        return CompiledOptions(options, self.tokenizers)

    def translate_chunk(self, texts: Sequence[str], compiled: CompiledOptions) -> list[Translation]:
        """All texts together, batched by their lengths."""
        draft = self.prepare_texts(texts, compiled)
        return draft.restore_texts(
            self._translate_segments(
                draft.encoded_segments, compiled.with_output_options(draft.enable_needed_alignments(compiled.options))
            )
        )

    def prepare_texts(self, texts: Sequence[str], compiled: CompiledOptions) -> PreparedTexts:
        """The texts in pieces that the model can take."""
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"a text to translate is a str, not {type(text).__name__}: {text!r}"[:200])
            check_unicode(text)
        options = compiled.options
        carry = protect_markup if options.tags else protect_urls if options.addresses else PlainText
        carried = list(map(carry, texts))
        plain = [text for one in carried for text in one.translatable_texts]
        split = partial(split_sentences, language=self.language)
        cut = [split_into_segments(text, self.fits_in_one_segment, split, self.max_sentences) for text in plain]
        return PreparedTexts(
            carried, plain, cut, [piece for some in cut for piece in self._encode_segments(some, compiled)]
        )

    def fits_in_one_segment(self, text: str) -> bool:
        """Whether a text is short enough to be translated in one piece."""
        return self.max_source_tokens is None or len(self.tokenizers.source.encode(text)) <= self.max_source_tokens

    def _encode_segments(self, segments: Sequence[Segment], compiled: CompiledOptions) -> Iterator[EncodedSegment]:
        """The segments of a text: the first with words has the prefix, the longest what is to be forced."""
        spoken = [number for number, segment in enumerate(segments) if segment.text]
        longest = max(spoken, key=lambda number: len(segments[number].text), default=0)
        for number, segment in enumerate(segments):
            yield EncodedSegment(
                segment,
                *self.tokenizers.source.encode_with_word_ids(segment.text),
                compiled.prefix_ids if number in spoken[:1] else [],
                [
                    *(compiled.forced_phrases if number == longest else ()),
                    *compiled.glossary.find_phrases(segment.text),
                ],
            )

    def _translate_segments(self, segments: Sequence[EncodedSegment], compiled: CompiledOptions) -> list[Translation]:
        """A translation of each piece, in order."""
        options = compiled.options
        found: dict[int, list[Hypothesis]] = {}
        sizes = np.array([len(piece.ids) + 1 for piece in segments], dtype=np.int64)
        work = np.flatnonzero(sizes > 1)
        alone = np.array(
            [self._can_use_search_backend(segments[row], compiled) for row in work.tolist()], dtype=np.bool_
        )
        tokens = GPU_BATCH_TOKENS if self.device.type == "cuda" else BATCH_TOKENS
        room = max(1, tokens // (options.n_best if options.sample else options.beam))
        for some, most, by_itself in ((work[alone], SEARCH_BACKEND_TOKENS, True), (work[~alone], room, False)):
            lots = split_by_tokens(some[np.argsort(sizes[some], kind="stable")], sizes, most)[
                ::-1
            ]  # the last to end is short
            many = 1 if by_itself else self.count_parallel_batches(len(lots), compiled)
            who = self if many == 1 else self._copy_with_single_threaded_models()
            way = (
                who._search_with_backend
                if by_itself
                else who._sample_batch
                if options.sample
                else who._beam_search_batch
            )
            find = partial(who._decode_rows, segments, compiled, way)
            for rows, together in zip(lots, map_in_threads(find, lots, many), strict=True):
                found.update(zip(rows.tolist(), together, strict=True))
        each = (found.get(row, []) for row in range(len(segments)))
        return [self.build_translation(piece, some, options) for piece, some in zip(segments, each, strict=True)]

    def count_parallel_batches(self, batches: int, compiled: CompiledOptions) -> int:
        """How many batches are searched at a time: on a CPU several, where no chance and no training is in it."""
        alone = self.device.type != "cpu" or compiled.options.sample or any(model.training for model in self.models)
        return 1 if alone else choose_worker_count(batches)

    def _copy_with_single_threaded_models(self) -> Translator:
        """The same with engines that take one thread each."""
        other = copy.copy(self)
        other.decoding_models = [getattr(engine, "single", engine) for engine in self.decoding_models]
        return other

    def _decode_rows(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, decode: DecodeBatch, rows: Indices
    ) -> list[list[Hypothesis]]:
        """The targets of some of the pieces."""
        return self.decode_batch([segments[row] for row in rows], compiled, decode)

    def decode_batch(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, decode: DecodeBatch
    ) -> list[list[Hypothesis]]:
        """The targets of a batch of pieces that have words."""
        source, lengths = self.make_batch([[*compiled.domain_ids, *piece.ids] for piece in segments])
        return [
            self._trim_attentions(hypotheses, compiled) for hypotheses in decode(segments, compiled, source, lengths)
        ]

    def _sample_batch(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, source: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Targets that are drawn from the model."""
        options = compiled.options
        return sample(
            self.decoding_models,
            source,
            lengths,
            samples=options.n_best,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            **compiled.constraint_arguments,
        )

    def _beam_search_batch(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, source: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Targets that are searched for, among what the batch's sources may become where there is a shortlist of it."""
        find: Callable[..., list[list[Hypothesis]]] = search
        if self.shortlist is not None and not compiled.constraints:
            find = partial(search_restricted, self.shortlist.find_allowed_targets(source.flatten().tolist()))
        prefix, force = [piece.prefix_ids for piece in segments], [piece.forced_phrases for piece in segments]
        try:
            return find(
                self.decoding_models,
                source,
                lengths,
                prefix=prefix,
                force=force,
                **compiled.beam_arguments,
                **compiled.constraint_arguments,
            )
        except UnsatisfiableConstraintError as error:
            raise UserError(str(error)) from error

    def _can_use_search_backend(self, encoded: EncodedSegment, compiled: CompiledOptions) -> bool:
        """Whether a piece is left to the program that searches by itself: nothing is asked but to find the best."""
        return (
            self.search_backend is not None
            and compiled.is_unconstrained
            and not (encoded.prefix_ids or encoded.forced_phrases)
        )

    def _search_with_backend(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, source: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Targets that it finds."""
        options = compiled.options
        ids = [row[:length] for row, length in zip(source.tolist(), lengths.tolist(), strict=True)]
        ranking = Scorer(options.length_penalty)
        found: list[list[Hypothesis]] = self.search_backend.search(
            ids, options.beam, options.n_best, ranking, compiled.needs_attention
        )
        return found

    def decode_continuously(
        self,
        segments: Sequence[EncodedSegment],
        compiled: CompiledOptions,
        on_finished: OnFinished,
        get_more: Callable[[], Sequence[EncodedSegment]],
    ) -> None:
        """Searches for pieces that have words, and for those that come in after any step: `more` gives them.

        `done` is told of each, by its number in the order in which they came, as soon as it is known.
        """
        searching = BeamSearch(
            self.decoding_models, SearchOptions(**compiled.beam_arguments, **compiled.constraint_arguments)
        )
        while segments or searching.num_active:
            if segments:
                source, lengths = self.make_batch([[*compiled.domain_ids, *piece.ids] for piece in segments])
                prefix, force = [piece.prefix_ids for piece in segments], [piece.forced_phrases for piece in segments]
                searching.add(source, lengths, prefix=prefix, force=force)
            for index, hypotheses in searching.step():
                on_finished(index, self._trim_attentions(hypotheses, compiled))
            segments = get_more()

    def make_batch(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Sources B,S with EOS and their lengths."""
        source, lengths = map(torch.from_numpy, pad_with_end_id(RaggedArray.from_rows(ids), np.arange(len(ids)), EOS))
        return source.to(self.device), lengths.to(self.device)

    def build_translation(
        self, encoded: EncodedSegment, hypotheses: Sequence[Hypothesis], options: Options
    ) -> Translation:
        """What became of a piece: the best that was found, the others beside it; one without words stays as it is."""
        made = [self._convert_hypothesis(encoded, hypothesis, options) for hypothesis in hypotheses]
        text = encoded.segment.text
        best = made[0] if made else Translation(text, "" if encoded.ids else text, ended=not encoded.ids)
        best.alternatives.extend(made[1:])
        return best

    def _convert_hypothesis(self, encoded: EncodedSegment, hypothesis: Hypothesis, options: Options) -> Translation:
        """A hypothesis in words."""
        target, text, look = self.tokenizers.target, encoded.segment.text, hypothesis.attention
        made = [id for id in hypothesis.tokens if id != EOS]
        written, source = target.decode(made), text.split()
        alignment = None
        if look is not None and (options.alignments or options.tags):
            read = TokenizedWords(source, encoded.word_ids, ())
            alignment = align_words(
                look,
                read,
                TokenizedWords(written.split(), target.find_word_ids(made), target.convert_ids_to_tokens(made)),
            )
        if options.replace_unknown:
            if look is None:
                raise UserError("this model has no attention, so nothing says which word an <unk> stands for")
            words = find_unknown_replacements(
                made, look, [source[word] for word in encoded.word_ids], options.dictionary
            )
            written = replace_unknown([written], words)[0]
            alignment = alignment and alignment.replace_target_words(replace_unknown(alignment.target, words))
        return Translation(
            text,
            written,
            hypothesis.score,
            target.convert_ids_to_tokens(hypothesis.tokens),
            self.tokenizers.source.convert_ids_to_tokens([*encoded.ids, EOS]),
            look if options.alignments else None,
            alignment,
            hypothesis.tokens[-1] == EOS,
        )

    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[ScoredTarget]:
        """What the model thinks of given targets, each pair in one piece."""
        sources = [self.tokenizers.source.encode(text) for text, _ in pairs]
        targets = [[*self.tokenizers.target.encode(text), EOS] for _, text in pairs]
        longer = [max(len(source) + 1, len(target)) for source, target in zip(sources, targets, strict=True)]
        sizes = np.array(longer, dtype=np.int64)
        judged: dict[int, ScoredTarget] = {}
        for rows in split_by_tokens(np.argsort(sizes, kind="stable"), sizes, BATCH_TOKENS):
            source, lengths = self.make_batch([sources[row] for row in rows])
            found = score_targets(self.models, source, lengths, [targets[row] for row in rows], length_penalty=0.0)
            judged.update(zip(rows.tolist(), map(self._trim_scored_attention, found), strict=True))
        return [judged[row] for row in range(len(pairs))]

    @property
    def uses_next_step_attention(self) -> bool:
        """Whether an alignment takes each word's look from the step after it, as the first model that looks has it."""
        looking = (model.decoder for model in self.models if "a_t" in model.decoder.computation_order)
        return next((decoder.alignment_head.shifted for decoder in looking), False)

    def _trim_attentions(self, hypotheses: list[Hypothesis], compiled: CompiledOptions) -> list[Hypothesis]:
        """Hypotheses whose attention is that of their words."""
        return [
            _trim_attention(hypothesis, len(compiled.domain_ids), self.uses_next_step_attention)
            for hypothesis in hypotheses
        ]

    def _trim_scored_attention(self, scored: ScoredTarget) -> ScoredTarget:
        """A target that was judged, with the attention of its words."""
        return scored._replace(hypothesis=_trim_attention(scored.hypothesis, 0, self.uses_next_step_attention))

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[Alignment | None]:
        """The alignment of each pair of texts, by making the model write the target; None where it has no attention."""
        return [
            self.align_scored_pair(pair, judged) for pair, judged in zip(pairs, self.score_pairs(pairs), strict=True)
        ]

    def align_scored_pair(self, pair: tuple[str, str], scored: ScoredTarget) -> Alignment | None:
        """The alignment of a pair that was judged."""
        look = scored.hypothesis.attention
        return None if look is None else self._align_by_attention(pair, look)

    def _align_by_attention(self, pair: tuple[str, str], attention: Floats) -> Alignment:
        """The alignment of a pair, by attention over the tokens of both."""
        return align_words(attention, *self.tokenize_pair(pair))

    def tokenize_pair(self, pair: tuple[str, str]) -> tuple[TokenizedWords, TokenizedWords]:
        """The words of both texts, and their tokens."""
        source, target = pair
        ids, words = self.tokenizers.target.encode_with_word_ids(target)
        read = TokenizedWords(source.split(), self.tokenizers.source.encode_with_word_ids(source)[1], ())
        return read, TokenizedWords(target.split(), words, self.tokenizers.target.convert_ids_to_tokens(ids))


def _trim_attention(hypothesis: Hypothesis, skipped_positions: int, next_step: bool) -> Hypothesis:
    """A hypothesis whose attention leaves the first so many places of the source out, where no word stands.

    With `after` each token's is that of the step after it.
    """
    look = hypothesis.attention
    if look is None:
        return hypothesis
    return hypothesis._replace(attention=(shift_to_next_step(look) if next_step else look)[:, skipped_positions:])


def load(
    *runs: str | Path,
    device: str | torch.device | None = None,
    engine: str = base.TORCH,
    precision: str | None = None,
    shortlist: bool = False,
) -> Translator:
    """The best model of a run, ready to translate; several runs with the same vocabularies are an ensemble.

    What decodes is an `engine` of `regard.translate.backends.base`, in a precision that it has; PyTorch and onnxruntime also
    by the `shortlist` of target tokens that `regard export` has put beside the run.
    """
    base.check_engine_options(engine, precision, shortlist)
    if not runs:
        raise UserError("no run to load")
    opened = [Run(Path(run)) for run in runs]
    for one in opened:
        task = one.read_config().get("task", "translate")
        if task != "translate":
            raise UserError(f"{one.folder} does not translate, its task is {task!r}: regard predict {one.folder}")
    tokenizers = [run.load_tokenizers() for run in opened]
    for run, other in zip(runs, tokenizers, strict=True):
        for mine, its in zip(tokenizers[0], other, strict=True):
            if mine.vocab_size != its.vocab_size or mine.convert_ids_to_tokens(
                range(mine.vocab_size)
            ) != its.convert_ids_to_tokens(range(its.vocab_size)):
                raise UserError(
                    f"{runs[0]} and {run} have different vocabularies; an ensemble needs the same ones "
                    "(regard evaluate --compare has runs side by side)"
                )
    models = [run.load_model(own.vocab_sizes) for run, own in zip(opened, tokenizers, strict=True)]
    learnt = [parse_settings(DataSettings, run.read_config()["data"], "data") for run in opened]
    translator = Translator(
        models,
        tokenizers[0],
        None if device is None else torch.device(device),
        min(data.longest or data.max_length for data in learnt),
        min(data.sentences or 1 for data in learnt),  # null: not counted; a model may leave a second sentence out
        learnt[0].source,
    )
    loaded = [base.LoadedRun(*each) for each in zip(opened, translator.models, tokenizers, strict=True)]
    if shortlist:
        translator.shortlist = base.load_shortlist(loaded)
    alone = engine == base.AUTO and len(loaded) == 1 and not shortlist
    translator.search_backend = base.find_ctranslate2_backend(precision, loaded[0]) if alone else None
    by = (engine, precision) if translator.search_backend is None else (base.TORCH, None)  # for all else that is asked
    translator.decoding_models = [base.choose_decoding_model(*by, each) for each in loaded]
    if engine == base.CTRANSLATE2:
        if len(loaded) > 1:
            raise UserError(f"the engine {engine} runs one model at a time, not an ensemble of {len(loaded)}")
        translator.search_backend = base.make_ctranslate2_backend(precision, loaded[0])
    return translator
