"""Translator: translate, stream, score and align texts with one model or an ensemble; `load` opens runs."""

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
GPU_BATCH_TOKENS = 64_000  # a step takes as long on a GPU for a few rows as for hundreds
SEARCH_BACKEND_TOKENS = 32_000  # tokens per call of a backend that makes its own batches
STREAM_CHUNK_SIZE = 512  # texts of a stream that are sorted by length together


class Translator:
    """One model, or several as an ensemble, with tokenizers.

    A line with more than `max_source_tokens` tokens or `max_sentences` sentences (None: no limit) is split into
    sentences by the rules of the source `language`.
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
        self.decoding_models: Sequence[Any] = self.models  # replaced by those of a faster backend
        self.search_backend: Any = None  # backend with its own search (CTranslate2), for unconstrained translation
        self.shortlist: Shortlist | None = None  # restricts the output vocabulary
        self.tokenizers = tokenizers
        self.max_source_tokens = max_source_tokens
        self.max_sentences = math.inf if max_sentences is None else max_sentences
        self.language = language

    def translate(
        self, texts: Sequence[str], beam: int = 5, n_best: int = 1, alignments: bool = True, **options: Any
    ) -> list[Translation]:
        """Translate each text, in order; a text without words is returned unchanged. See `Options`."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        return self.translate_chunk(
            texts, self.compile_options(Options(beam=beam, n_best=n_best, alignments=alignments, **options))
        )

    def stream(
        self, texts: Iterable[str], chunk_size: int = STREAM_CHUNK_SIZE, **options: Any
    ) -> Iterator[Translation]:
        """Yield translations in order while texts still arrive; `chunk_size` texts are sorted and batched together."""
        if isinstance(texts, str):
            raise TypeError("stream takes texts one after the other, not one text: stream([text])")
        return self._stream_chunks(iter(texts), chunk_size, self.compile_options(Options(**options)))

    def _stream_chunks(self, texts: Iterator[str], chunk_size: int, compiled: CompiledOptions) -> Iterator[Translation]:
        while chunk := list(islice(texts, chunk_size)):
            yield from self.translate_chunk(chunk, compiled)

    def compile_options(self, options: Options) -> CompiledOptions:
        """Check the options and encode their words; errors show here, before anything is translated."""
        return CompiledOptions(options, self.tokenizers)

    def translate_chunk(self, texts: Sequence[str], compiled: CompiledOptions) -> list[Translation]:
        """Translate all texts together, batched by length."""
        prepared = self.prepare_texts(texts, compiled)
        return prepared.restore_texts(
            self._translate_segments(
                prepared.encoded_segments,
                compiled.with_output_options(prepared.enable_needed_alignments(compiled.options)),
            )
        )

    def prepare_texts(self, texts: Sequence[str], compiled: CompiledOptions) -> PreparedTexts:
        """Protect tags and URLs, split the texts into segments that fit the model, and encode them."""
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"a text to translate is a str, not {type(text).__name__}: {text!r}"[:200])
            check_unicode(text)
        options = compiled.options
        protect = protect_markup if options.tags else protect_urls if options.addresses else PlainText
        protected = list(map(protect, texts))
        plain = [text for protected_text in protected for text in protected_text.translatable_texts]
        split = partial(split_sentences, language=self.language)
        segments_of_texts = [
            split_into_segments(text, self.fits_in_one_segment, split, self.max_sentences) for text in plain
        ]
        return PreparedTexts(
            protected,
            plain,
            segments_of_texts,
            [encoded for segments in segments_of_texts for encoded in self._encode_segments(segments, compiled)],
        )

    def fits_in_one_segment(self, text: str) -> bool:
        """Return True if a text is short enough to be translated as one segment."""
        return self.max_source_tokens is None or len(self.tokenizers.source.encode(text)) <= self.max_source_tokens

    def _encode_segments(self, segments: Sequence[Segment], compiled: CompiledOptions) -> Iterator[EncodedSegment]:
        """Encode the segments of a text: the first with words gets the prefix, the longest the forced phrases."""
        with_words = [index for index, segment in enumerate(segments) if segment.text]
        longest = max(with_words, key=lambda index: len(segments[index].text), default=0)
        for index, segment in enumerate(segments):
            yield EncodedSegment(
                segment,
                *self.tokenizers.source.encode_with_word_ids(segment.text),
                compiled.prefix_ids if index in with_words[:1] else [],
                [
                    *(compiled.forced_phrases if index == longest else ()),
                    *compiled.glossary.find_phrases(segment.text),
                ],
            )

    def _translate_segments(self, segments: Sequence[EncodedSegment], compiled: CompiledOptions) -> list[Translation]:
        """Translate each segment, in order."""
        options = compiled.options
        hypotheses: dict[int, list[Hypothesis]] = {}
        sizes = np.array([len(segment.ids) + 1 for segment in segments], dtype=np.int64)
        nonempty = np.flatnonzero(sizes > 1)
        is_unconstrained = np.array(
            [self._can_use_search_backend(segments[row], compiled) for row in nonempty.tolist()], dtype=np.bool_
        )
        tokens = GPU_BATCH_TOKENS if self.device.type == "cuda" else BATCH_TOKENS
        max_rows_tokens = max(1, tokens // (options.n_best if options.sample else options.beam))
        for selected, max_tokens, with_backend in (
            (nonempty[is_unconstrained], SEARCH_BACKEND_TOKENS, True),
            (nonempty[~is_unconstrained], max_rows_tokens, False),
        ):
            batches = split_by_tokens(selected[np.argsort(sizes[selected], kind="stable")], sizes, max_tokens)[
                ::-1
            ]  # the longest first, so that the last batch to finish is short
            workers = 1 if with_backend else self.count_parallel_batches(len(batches), compiled)
            translator = self if workers == 1 else self._copy_with_single_threaded_models()
            decode = (
                translator._search_with_backend
                if with_backend
                else translator._sample_batch
                if options.sample
                else translator._beam_search_batch
            )
            decode_rows = partial(translator._decode_rows, segments, compiled, decode)
            for rows, decoded in zip(batches, map_in_threads(decode_rows, batches, workers), strict=True):
                hypotheses.update(zip(rows.tolist(), decoded, strict=True))
        of_segments = (hypotheses.get(row, []) for row in range(len(segments)))
        return [
            self.build_translation(segment, selected, options)
            for segment, selected in zip(segments, of_segments, strict=True)
        ]

    def count_parallel_batches(self, batches: int, compiled: CompiledOptions) -> int:
        """Return the number of batches to decode in parallel: more than 1 on a CPU without sampling or dropout."""
        one_at_a_time = (
            self.device.type != "cpu" or compiled.options.sample or any(model.training for model in self.models)
        )
        return 1 if one_at_a_time else choose_worker_count(batches)

    def _copy_with_single_threaded_models(self) -> Translator:
        """Return a copy whose decoding models use one thread each."""
        copied = copy.copy(self)
        copied.decoding_models = [getattr(model, "single", model) for model in self.decoding_models]
        return copied

    def _decode_rows(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, decode: DecodeBatch, rows: Indices
    ) -> list[list[Hypothesis]]:
        return self.decode_batch([segments[row] for row in rows], compiled, decode)

    def decode_batch(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, decode: DecodeBatch
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of a batch of segments that have words."""
        source, lengths = self.make_batch([[*compiled.domain_ids, *segment.ids] for segment in segments])
        return [
            self._trim_attentions(hypotheses, compiled) for hypotheses in decode(segments, compiled, source, lengths)
        ]

    def _sample_batch(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, source: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Sample targets from the model."""
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
        """Search targets by beam search, restricted to the shortlist if there is one."""
        run_search: Callable[..., list[list[Hypothesis]]] = search
        if self.shortlist is not None and not compiled.constraints:
            run_search = partial(search_restricted, self.shortlist.find_allowed_targets(source.flatten().tolist()))
        prefix, force = [segment.prefix_ids for segment in segments], [segment.forced_phrases for segment in segments]
        try:
            return run_search(
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
        """Return True if the backend with its own search can translate a segment: no constraints at all."""
        return (
            self.search_backend is not None
            and compiled.is_unconstrained
            and not (encoded.prefix_ids or encoded.forced_phrases)
        )

    def _search_with_backend(
        self, segments: Sequence[EncodedSegment], compiled: CompiledOptions, source: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Search with the backend's own search."""
        options = compiled.options
        ids = [row[:length] for row, length in zip(source.tolist(), lengths.tolist(), strict=True)]
        ranking = Scorer(options.length_penalty)
        hypotheses: list[list[Hypothesis]] = self.search_backend.search(
            ids, options.beam, options.n_best, ranking, compiled.needs_attention
        )
        return hypotheses

    def decode_continuously(
        self,
        segments: Sequence[EncodedSegment],
        compiled: CompiledOptions,
        on_finished: OnFinished,
        get_more: Callable[[], Sequence[EncodedSegment]],
    ) -> None:
        """Run beam search on segments that have words, and on those that `get_more` adds after each step.

        `on_finished` is called with the number of each segment, in the order of arrival, as soon as its search is
        finished.
        """
        beam_search = BeamSearch(
            self.decoding_models, SearchOptions(**compiled.beam_arguments, **compiled.constraint_arguments)
        )
        while segments or beam_search.num_active:
            if segments:
                source, lengths = self.make_batch([[*compiled.domain_ids, *segment.ids] for segment in segments])
                prefix, force = (
                    [segment.prefix_ids for segment in segments],
                    [segment.forced_phrases for segment in segments],
                )
                beam_search.add(source, lengths, prefix=prefix, force=force)
            for index, hypotheses in beam_search.step():
                on_finished(index, self._trim_attentions(hypotheses, compiled))
            segments = get_more()

    def make_batch(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return padded sources (B, S) with EOS, and their lengths (B,)."""
        source, lengths = map(torch.from_numpy, pad_with_end_id(RaggedArray.from_rows(ids), np.arange(len(ids)), EOS))
        return source.to(self.device), lengths.to(self.device)

    def build_translation(
        self, encoded: EncodedSegment, hypotheses: Sequence[Hypothesis], options: Options
    ) -> Translation:
        """Build the translation of a segment from its hypotheses, with the n-best alternatives.

        A segment without words is returned unchanged.
        """
        translations = [self._convert_hypothesis(encoded, hypothesis, options) for hypothesis in hypotheses]
        text = encoded.segment.text
        best = (
            translations[0] if translations else Translation(text, "" if encoded.ids else text, ended=not encoded.ids)
        )
        best.alternatives.extend(translations[1:])
        return best

    def _convert_hypothesis(self, encoded: EncodedSegment, hypothesis: Hypothesis, options: Options) -> Translation:
        """Convert a hypothesis to text, with its alignment and replaced unknown words."""
        target, text, attention = self.tokenizers.target, encoded.segment.text, hypothesis.attention
        ids = [id for id in hypothesis.tokens if id != EOS]
        written, source = target.decode(ids), text.split()
        alignment = None
        if attention is not None and (options.alignments or options.tags):
            source_words = TokenizedWords(source, encoded.word_ids, ())
            alignment = align_words(
                attention,
                source_words,
                TokenizedWords(written.split(), target.find_word_ids(ids), target.convert_ids_to_tokens(ids)),
            )
        if options.replace_unknown:
            if attention is None:
                raise UserError("this model has no attention, so it cannot replace <unk> by source words")
            words = find_unknown_replacements(
                ids, attention, [source[word] for word in encoded.word_ids], options.dictionary
            )
            written = replace_unknown([written], words)[0]
            alignment = alignment and alignment.replace_target_words(replace_unknown(alignment.target, words))
        return Translation(
            text,
            written,
            hypothesis.score,
            target.convert_ids_to_tokens(hypothesis.tokens),
            self.tokenizers.source.convert_ids_to_tokens([*encoded.ids, EOS]),
            attention if options.alignments else None,
            alignment,
            hypothesis.tokens[-1] == EOS,
        )

    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[ScoredTarget]:
        """Score given targets by forced decoding; each pair is one segment."""
        sources = [self.tokenizers.source.encode(text) for text, _ in pairs]
        targets = [[*self.tokenizers.target.encode(text), EOS] for _, text in pairs]
        lengths_of_pairs = [max(len(source) + 1, len(target)) for source, target in zip(sources, targets, strict=True)]
        sizes = np.array(lengths_of_pairs, dtype=np.int64)
        scored: dict[int, ScoredTarget] = {}
        for rows in split_by_tokens(np.argsort(sizes, kind="stable"), sizes, BATCH_TOKENS):
            source, lengths = self.make_batch([sources[row] for row in rows])
            batch_scored = score_targets(
                self.models, source, lengths, [targets[row] for row in rows], length_penalty=0.0
            )
            scored.update(zip(rows.tolist(), map(self._trim_scored_attention, batch_scored), strict=True))
        return [scored[row] for row in range(len(pairs))]

    @property
    def uses_next_step_attention(self) -> bool:
        """True if alignments use the attention of the following step (of the first model with attention)."""
        with_attention = (model.decoder for model in self.models if "a_t" in model.decoder.computation_order)
        return next((decoder.alignment_head.shifted for decoder in with_attention), False)

    def _trim_attentions(self, hypotheses: list[Hypothesis], compiled: CompiledOptions) -> list[Hypothesis]:
        """Remove the domain tag from the attention of hypotheses, and shift it if necessary."""
        return [
            _trim_attention(hypothesis, len(compiled.domain_ids), self.uses_next_step_attention)
            for hypothesis in hypotheses
        ]

    def _trim_scored_attention(self, scored: ScoredTarget) -> ScoredTarget:
        return scored._replace(hypothesis=_trim_attention(scored.hypothesis, 0, self.uses_next_step_attention))

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[Alignment | None]:
        """Align each pair of texts by forced decoding; None if the model has no attention."""
        return [
            self.align_scored_pair(pair, scored) for pair, scored in zip(pairs, self.score_pairs(pairs), strict=True)
        ]

    def align_scored_pair(self, pair: tuple[str, str], scored: ScoredTarget) -> Alignment | None:
        """Return the alignment of a scored pair."""
        attention = scored.hypothesis.attention
        return None if attention is None else self._align_by_attention(pair, attention)

    def _align_by_attention(self, pair: tuple[str, str], attention: Floats) -> Alignment:
        return align_words(attention, *self.tokenize_pair(pair))

    def tokenize_pair(self, pair: tuple[str, str]) -> tuple[TokenizedWords, TokenizedWords]:
        """Return words and tokens of both texts."""
        source, target = pair
        ids, word_ids = self.tokenizers.target.encode_with_word_ids(target)
        source_words = TokenizedWords(source.split(), self.tokenizers.source.encode_with_word_ids(source)[1], ())
        return source_words, TokenizedWords(target.split(), word_ids, self.tokenizers.target.convert_ids_to_tokens(ids))


def _trim_attention(hypothesis: Hypothesis, skipped_positions: int, next_step: bool) -> Hypothesis:
    """Drop the first `skipped_positions` source positions (tags) from a hypothesis's attention.

    `next_step`: use the attention of the following step for each token.
    """
    attention = hypothesis.attention
    if attention is None:
        return hypothesis
    return hypothesis._replace(
        attention=(shift_to_next_step(attention) if next_step else attention)[:, skipped_positions:]
    )


def load(
    *runs: str | Path,
    device: str | torch.device | None = None,
    engine: str = base.TORCH,
    precision: str | None = None,
    shortlist: bool = False,
) -> Translator:
    """Load the best checkpoint of a run for translation; several runs with the same vocabularies form an ensemble.

    Args:
        runs: Run folders.
        device: Device of the models; default: a GPU if there is one.
        engine: Decoding backend, one of `regard.translate.backends.base.ENGINES`.
        precision: fp32 or int8; default: that of the export, else fp32.
        shortlist: Restrict the output vocabulary to the shortlist that `regard export` wrote; for PyTorch and ONNX.
    """
    base.check_engine_options(engine, precision, shortlist)
    if not runs:
        raise UserError("no run to load")
    opened = [Run(Path(run)) for run in runs]
    for opened_run in opened:
        task = opened_run.read_config().get("task", "translate")
        if task != "translate":
            raise UserError(
                f"{opened_run.folder} does not translate, its task is {task!r}; use: regard predict {opened_run.folder}"
            )
    tokenizers = [run.load_tokenizers() for run in opened]
    for run, other in zip(runs, tokenizers, strict=True):
        for own_tokenizer, other_tokenizer in zip(tokenizers[0], other, strict=True):
            if own_tokenizer.vocab_size != other_tokenizer.vocab_size or own_tokenizer.convert_ids_to_tokens(
                range(own_tokenizer.vocab_size)
            ) != other_tokenizer.convert_ids_to_tokens(range(other_tokenizer.vocab_size)):
                raise UserError(
                    f"{runs[0]} and {run} have different vocabularies; an ensemble needs the same ones "
                    "(to compare runs, use regard evaluate --compare)"
                )
    models = [
        run.load_model(run_tokenizers.vocab_sizes) for run, run_tokenizers in zip(opened, tokenizers, strict=True)
    ]
    data_settings = [parse_settings(DataSettings, run.read_config()["data"], "data") for run in opened]
    translator = Translator(
        models,
        tokenizers[0],
        None if device is None else torch.device(device),
        min(data.longest or data.max_length for data in data_settings),
        min(data.sentences or 1 for data in data_settings),  # null: unknown; such a model may skip a second sentence
        data_settings[0].source,
    )
    loaded = [base.LoadedRun(*loaded_run) for loaded_run in zip(opened, translator.models, tokenizers, strict=True)]
    if shortlist:
        translator.shortlist = base.load_shortlist(loaded)
    single_auto = engine == base.AUTO and len(loaded) == 1 and not shortlist
    translator.search_backend = base.find_ctranslate2_backend(precision, loaded[0]) if single_auto else None
    decoding = (
        (engine, precision) if translator.search_backend is None else (base.TORCH, None)
    )  # for constrained search
    translator.decoding_models = [base.choose_decoding_model(*decoding, loaded_run) for loaded_run in loaded]
    if engine == base.CTRANSLATE2:
        if len(loaded) > 1:
            raise UserError(f"the engine {engine} runs one model at a time, not an ensemble of {len(loaded)}")
        translator.search_backend = base.make_ctranslate2_backend(precision, loaded[0])
    return translator
