"""Translator: translate, stream, score and align texts with one model or an ensemble; `load` opens runs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.config import parse_settings
from regard.console import log_detail
from regard.data.split import DataSettings
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.models.base import Decoder
from regard.recipes.recipe import DEFAULT_TASK, get_task_name
from regard.runs import Run, choose_inference_device
from regard.search import BeamSearch, Hypothesis, SearchOptions, score_targets
from regard.search.scoring import ScoredTarget
from regard.special_tokens import EOS
from regard.tokenizers.alignment_units import check_units, find_presegmented_words
from regard.tokenizers.segmentation import find_word_spans, has_unspaced_script, join_words, split_sentences
from regard.tokenizers.tokenizer import WORDS, TokenizedWords, Tokenizers, check_unicode, find_units, find_units_of_text
from regard.translate.backends import TORCH, base, check_engine_options
from regard.translate.backends.exports import LoadedRun, list_tokens
from regard.translate.options import (
    CompiledOptions,
    Options,
    compile_options,
    find_unknown_replacements,
    replace_unknown,
)
from regard.translate.protected_spans import PreparedTexts, protect_markup, protect_nothing, protect_urls
from regard.translate.translation import (
    Alignment,
    EncodedSegment,
    Segment,
    Translation,
    adapt_gap,
    align_words,
    shift_to_next_step,
    split_into_segments,
)

OnFinished = Callable[[int, list[Hypothesis]], None]

STREAM_CHUNK_SIZE = 512  # texts of a stream that are sorted by length together


class Translator:
    """One model, or several as an ensemble, with tokenizers and the backend that decodes.

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
        backend: base.TorchBackend | None = None,
    ) -> None:
        self.device = choose_inference_device(device)
        self.models = [model.to(self.device).eval() for model in models]
        self.backend = backend or base.TorchBackend(self.models, self.device)
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
        compiled = self.compile_options(Options(beam=beam, n_best=n_best, alignments=alignments, **options))
        return self.translate_chunk(texts, compiled)

    def stream(
        self, texts: Iterable[str], chunk_size: int = STREAM_CHUNK_SIZE, **options: Any
    ) -> Iterator[Translation]:
        """Yield translations in order while texts still arrive; `chunk_size` texts are sorted and batched together."""
        if isinstance(texts, str):
            raise TypeError("stream takes texts one after the other, not one text: stream([text])")
        compiled, iterator = self.compile_options(Options(**options)), iter(texts)
        chunks = iter(lambda: list(islice(iterator, chunk_size)), [])
        return chain.from_iterable(self.translate_chunk(chunk, compiled) for chunk in chunks)

    def compile_options(self, options: Options) -> CompiledOptions:
        """Check the options and encode their words; errors show here, before anything is translated."""
        return compile_options(options, self.tokenizers)

    def translate_chunk(self, texts: Sequence[str], compiled: CompiledOptions) -> list[Translation]:
        """Translate all texts together, batched by length."""
        # 1. to 3. Protect tags and URLs, split into segments, encode.
        prepared = self.prepare_texts(texts, compiled)
        # 4. Search, with attention if it places tags or URLs.
        if prepared.needs_alignment:
            compiled = replace(compiled, options=replace(compiled.options, tags=True))
        with_words = [segment for segment in prepared.encoded_segments if segment.ids]
        num_domain_tags = len(compiled.domain_ids)
        hypotheses_per_segment = (
            self.trim_and_shift_attentions(hypotheses, num_domain_tags)
            for hypotheses in self.backend.search(with_words, compiled)
        )
        # 5. and 6. Detokenize and align, join segments, restore tags and URLs.
        return self.finish_texts(prepared, hypotheses_per_segment, compiled.options)

    def prepare_texts(self, texts: Sequence[str], compiled: CompiledOptions) -> PreparedTexts:
        """Protect tags and URLs, split the texts into segments that fit the model, and encode them."""
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"a text to translate is a str, not {type(text).__name__}: {text!r}"[:200])
            check_unicode(text)
        options = compiled.options
        # 1. Protect.
        protects_urls = options.addresses and options.units == WORDS
        protect = protect_markup if options.tags else protect_urls if protects_urls else protect_nothing
        protected = list(map(protect, texts))
        plain = [text for protected_text in protected for text in protected_text.translatable_texts]
        # 2. Segment.
        split = partial(split_sentences, language=self.language)
        segments = [split_into_segments(text, self.fits_in_one_segment, split, self.max_sentences) for text in plain]
        # 3. Encode.
        encoded = [encoded for of_text in segments for encoded in self._encode_segments(of_text, compiled)]
        return PreparedTexts(protected, plain, segments, encoded)

    def finish_texts(
        self, prepared: PreparedTexts, hypotheses_per_segment: Iterable[Sequence[Hypothesis]], options: Options
    ) -> list[Translation]:
        """Build the translations of texts from the hypotheses of their segments; those without words have none."""
        if prepared.needs_alignment:
            options = replace(options, tags=True)
        remaining = iter(hypotheses_per_segment)
        return prepared.restore_texts(
            [
                self.build_translation(segment, next(remaining) if segment.ids else [], options)
                for segment in prepared.encoded_segments
            ]
        )

    def fits_in_one_segment(self, text: str) -> bool:
        """Return True if a text is short enough to be translated as one segment."""
        return self.max_source_tokens is None or len(self.tokenizers.source.encode(text)) <= self.max_source_tokens

    def _encode_segments(self, segments: Sequence[Segment], compiled: CompiledOptions) -> Iterator[EncodedSegment]:
        """Encode the segments of a text: the first with words gets the prefix, the longest the forced phrases."""
        with_words = [index for index, segment in enumerate(segments) if segment.text]
        longest = max(with_words, key=lambda index: len(segments[index].text), default=0)
        for index, segment in enumerate(segments):
            ids, word_ids = self.tokenizers.source.encode_with_word_ids(segment.text)
            prefix_ids = compiled.prefix_ids if index in with_words[:1] else []
            forced = compiled.forced_phrases if index == longest else []
            terms = compiled.glossary.find_phrases(segment.text) if compiled.glossary else []
            yield EncodedSegment(segment, ids, word_ids, prefix_ids, [*forced, *terms])

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
        beam_search = BeamSearch(self.backend.models, compiled.search_options)
        while segments or beam_search.num_active:
            if segments:
                beam_search.add(
                    *base.make_batch([segment.ids for segment in segments], self.device, compiled.domain_ids),
                    prefix=[segment.prefix_ids for segment in segments],
                    force=[segment.forced_phrases for segment in segments],
                )
            for index, hypotheses in beam_search.step():
                on_finished(index, self.trim_and_shift_attentions(hypotheses, len(compiled.domain_ids)))
            segments = get_more()

    def make_batch(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return padded sources (B, S) with EOS, and their lengths (B,)."""
        return base.make_batch(ids, self.device)

    def build_translation(
        self, encoded: EncodedSegment, hypotheses: Sequence[Hypothesis], options: Options
    ) -> Translation:
        """Build the translation of a segment from its hypotheses, with the n-best alternatives.

        A segment without words is returned unchanged.
        """
        if not hypotheses:
            text = encoded.segment.text
            return Translation(text, "" if encoded.ids else text, ended=not encoded.ids)
        best, *alternatives = (self._convert_hypothesis(encoded, hypothesis, options) for hypothesis in hypotheses)
        return replace(best, alternatives=alternatives)

    def _convert_hypothesis(self, encoded: EncodedSegment, hypothesis: Hypothesis, options: Options) -> Translation:
        """Convert a hypothesis to text, with its alignment and replaced unknown words."""
        target, text, attention = self.tokenizers.target, encoded.segment.text, hypothesis.attention
        ids = [id for id in hypothesis.tokens if id != EOS]
        written, alignment = target.decode(ids), None
        if attention is not None and (options.alignments or options.tags or options.replace_unknown):
            source = find_units(self.tokenizers.source, text, encoded.ids, encoded.word_ids, options.units)
            if options.alignments or options.tags:
                words = find_units(target, written, ids, target.find_word_ids(ids), options.units)
                alignment = align_words(attention, source, words, self.has_attention_sink)
        if options.replace_unknown:
            if attention is None:
                raise UserError("this model has no attention, so it cannot replace <unk> by source words")
            source_of_tokens = [source.words[word] for word in source.make_weights(len(encoded.ids)).argmax(1)]
            replacements = find_unknown_replacements(ids, attention, source_of_tokens, options.dictionary)
            written = replace_unknown([written], replacements)[0]
            if alignment is not None:
                alignment = alignment.replace_target_words(replace_unknown(alignment.target, replacements), written)
        return Translation(
            source=text,
            text=written,
            score=hypothesis.score,
            tokens=target.convert_ids_to_tokens(hypothesis.tokens),
            source_tokens=self.tokenizers.source.convert_ids_to_tokens([*encoded.ids, EOS]),
            attention=attention if options.alignments else None,
            alignment=alignment,
            ended=hypothesis.tokens[-1] == EOS,
        )

    def encode_pair(self, source: str, target: str, presegmented: bool = False) -> tuple[list[int], list[int]]:
        """Return the ids of source and target; the target ends in EOS. `presegmented` as in `align`."""
        if presegmented:
            source, target = join_words(source.split()), join_words(target.split())
        return self.tokenizers.source.encode(source), [*self.tokenizers.target.encode(target), EOS]

    def score_pairs(self, pairs: Sequence[tuple[str, str]], presegmented: bool = False) -> list[ScoredTarget]:
        """Score given targets by forced decoding; each pair is one segment. `presegmented` as in `align`."""
        encoded = [self.encode_pair(*pair, presegmented) for pair in pairs]
        batches = base.split_by_length(
            [max(len(source) + 1, len(target)) for source, target in encoded], base.BATCH_TOKENS
        )
        return base.restore_order(batches, (self._score_batch([encoded[row] for row in rows]) for rows in batches))

    def _score_batch(self, encoded: Sequence[tuple[list[int], list[int]]]) -> list[ScoredTarget]:
        source, lengths = self.make_batch([source for source, _ in encoded])
        scored = score_targets(self.models, source, lengths, [target for _, target in encoded], length_penalty=0.0)
        hypotheses = self.trim_and_shift_attentions([target.hypothesis for target in scored])
        return [target._replace(hypothesis=own) for target, own in zip(scored, hypotheses, strict=True)]

    def trim_and_shift_attentions(self, hypotheses: Sequence[Hypothesis], num_domain_tags: int = 0) -> list[Hypothesis]:
        """Remove domain tags from the attention of hypotheses, and use that of the next step if necessary."""
        is_shifted = self.alignment_decoder is not None and self.alignment_decoder.alignment_head.shifted
        trimmed = []
        for hypothesis in hypotheses:
            attention = hypothesis.attention
            if attention is not None:
                attention = (shift_to_next_step(attention) if is_shifted else attention)[:, num_domain_tags:]
            trimmed.append(hypothesis._replace(attention=attention))
        return trimmed

    def align(
        self, pairs: Sequence[tuple[str, str]], units: str = WORDS, presegmented: bool = False
    ) -> list[Alignment | None]:
        """Align each pair of texts by forced decoding; None if the model has no attention.

        Args:
            pairs: Texts.
            units: What is aligned, one of `regard.tokenizers.alignment_units.UNITS`.
            presegmented: The words of the texts are those between spaces also in scripts that have none. The model
                reads them joined as these scripts are written.
        """
        check_units(units, presegmented)
        scored = self.score_pairs(pairs, presegmented)
        return [
            self.align_scored_pair(pair, target, units, presegmented)
            for pair, target in zip(pairs, scored, strict=True)
        ]

    def align_scored_pair(
        self, pair: tuple[str, str], scored: ScoredTarget, units: str = WORDS, presegmented: bool = False
    ) -> Alignment | None:
        """Return the alignment of a scored pair; see `align`."""
        attention = scored.hypothesis.attention
        if attention is None:
            return None
        return align_words(attention, *self.tokenize_pair(pair, units, presegmented), self.has_attention_sink)

    @property
    def alignment_decoder(self) -> Decoder | None:
        """The decoder of the first model with attention, which decides how attention becomes alignment."""
        return next((model.decoder for model in self.models if "a_t" in model.decoder.computation_order), None)

    @property
    def has_attention_sink(self) -> bool:
        """See `Decoder`."""
        return self.alignment_decoder is not None and self.alignment_decoder.has_attention_sink

    def tokenize_pair(
        self, pair: tuple[str, str], units: str = WORDS, presegmented: bool = False
    ) -> tuple[TokenizedWords, TokenizedWords]:
        """Return the units of both texts with their tokens; see `align`."""
        divide = find_presegmented_words if presegmented else partial(find_units_of_text, units=units)
        return divide(self.tokenizers.source, pair[0]), divide(self.tokenizers.target, pair[1])


def load(
    *runs: str | Path,
    device: str | torch.device | None = None,
    engine: str = TORCH,
    precision: str | None = None,
    shortlist: bool = False,
) -> Translator:
    """Load the best checkpoint of a run for translation; several runs with the same vocabularies form an ensemble.

    Args:
        runs: Run folders.
        device: Device of the models; default: a GPU if there is one.
        engine: Decoding backend, one of `regard.translate.backends.ENGINES`.
        precision: fp32 or int8; default: that of the export, else fp32.
        shortlist: Restrict the output vocabulary to the shortlist that `regard export` wrote; for PyTorch and ONNX.
    """
    check_engine_options(engine, precision, shortlist)
    if not runs:
        raise UserError("no run to load")
    opened, device = [Run(Path(run)) for run in runs], choose_inference_device(device)
    for run in opened:
        task = get_task_name(run.read_config())
        if task != DEFAULT_TASK:
            raise UserError(f"{run.folder} does not translate, its task is {task!r}; use: regard predict {run.folder}")
    tokenizers = [run.load_tokenizers() for run in opened]
    for run, own in zip(opened[1:], tokenizers[1:], strict=True):
        if list_tokens(own) != list_tokens(tokenizers[0]):
            raise UserError(
                f"{opened[0].folder} and {run.folder} have different vocabularies; an ensemble needs the same ones "
                "(to compare runs, use regard evaluate --compare)"
            )
    loaded = [
        LoadedRun(run, run.load_model(own.vocab_sizes).to(device).eval(), own)
        for run, own in zip(opened, tokenizers, strict=True)
    ]
    data_settings = [parse_settings(DataSettings, run.read_config()["data"], "data") for run in opened]
    backend = base.choose_backend(engine, precision, loaded, shortlist)
    for run in opened:
        log_detail(f"{run.folder}: step {run.find_best_step():,}, on {device}; {backend.reason}")
    return Translator(
        [run.model for run in loaded],
        tokenizers[0],
        device,
        max_source_tokens=min(data.longest or data.max_length for data in data_settings),
        # null: unknown; such a model may skip a second sentence
        max_sentences=min(data.sentences or 1 for data in data_settings),
        language=data_settings[0].source,
        backend=backend,
    )


_UNSTABLE_WORDS = 3  # last words of a script without spaces, which the following tokens may still divide otherwise


class StreamedWord(NamedTuple):
    """A word of the translation, the white space before it, and its attention."""

    before: str
    text: str
    weights: list[float] | None  # over the words of the whole source text; None: the model has no attention


def stream_words(translator: Translator, text: str) -> Iterator[StreamedWord]:
    """Yield the words of a text's greedy translation as soon as each is complete."""
    before, offset, word_ends = "", 0, [end for _, end in find_word_spans(text)]
    previous, written = None, ""  # the segment before, and its translation
    compiled = translator.compile_options(Options(beam=1, addresses=False))
    for encoded in translator.prepare_texts([text], compiled).encoded_segments:
        segment = encoded.segment
        before, offset = before + segment.before, offset + len(segment.before)
        columns = [bisect_right(word_ends, offset + start) for start, _ in find_word_spans(segment.text)]
        before = adapt_gap(previous, segment, written) if previous and written else before
        written = ""
        for word in _decode_greedily(translator, encoded) if encoded.ids else ():
            weights = word.weights and np.bincount(columns, word.weights, len(word_ends)).tolist()
            yield StreamedWord(before + word.before, word.text, weights)
            before, written = "", written + word.before + word.text
        before, offset = before + segment.after, offset + len(segment.text + segment.after)
        previous = segment
    if before:
        yield StreamedWord(before, "", None)


def _decode_greedily(translator: Translator, encoded: EncodedSegment) -> Iterator[StreamedWord]:
    """Decode a segment by greedy search; yield each word when it is complete, with its attention over source words."""
    searcher, options = BeamSearch(translator.models, SearchOptions(beam=1)), Options()
    searcher.add(*translator.make_batch([encoded.ids]))
    (sentence,) = searcher.active
    emitted = 0  # characters
    while searcher.num_active:
        searcher.step()
        tokens, attention = sentence.backtrack(0)
        (hypothesis,) = translator.trim_and_shift_attentions([Hypothesis(tokens, 0.0, 0.0, attention)])
        translation = translator.build_translation(encoded, [hypothesis], options)
        text, spans = translation.text, find_word_spans(translation.text)
        # The next tokens may continue the last word.
        num_incomplete = 0 if sentence.done else _UNSTABLE_WORDS if has_unspaced_script(text) else 1
        weights = translation.alignment.soft.tolist() if translation.alignment else [None] * len(spans)
        for (start, end), of_word in list(zip(spans, weights, strict=True))[: max(0, len(spans) - num_incomplete)]:
            if end > emitted:
                begin = max(start, emitted)
                yield StreamedWord(" " * (0 < emitted < begin), text[begin:end], of_word)
                emitted = end
