"""The translation task: data preparation, and validation with dev loss, perplexity, BLEU and chrF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from regard.console import is_rank0, log_message
from regard.corpus.filters import FilterPipeline, find_main_scripts, hash_text, make_default_filters, peek_pairs
from regard.data.dataset import Indices, ParallelDataset, RaggedArray
from regard.data.languages import are_different_languages, is_language_code, normalize_language_code
from regard.data.loader import map_batches, map_batches_in_order
from regard.data.prepare import PreparedCorpus, load_or_train_tokenizers, prepare_training_pairs
from regard.data.readers.dispatch import find_corpus_languages, iterate_pairs, make_language_request, read_all_pairs
from regard.data.readers.text import Link, Pair
from regard.data.split import CorpusSplit, DataSettings, list_corpora, split_corpora
from regard.errors import UserError, short_repr
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.evaluate.translation_metrics import ValidationScorer
from regard.models import Seq2Seq
from regard.plot.heatmap import plot_heatmap
from regard.recipes.recipe import RunConfig
from regard.runs import Run
from regard.search import Hypothesis, search
from regard.special_tokens import EOS, PAD, SPECIAL_TOKENS
from regard.synthetic.corpora import CORPUS_WORDS, SyntheticCorpus
from regard.synthetic.translation import DEFAULT_PAIR, write_translation_corpus
from regard.tasks.base import (
    SAMPLES,
    DevExample,
    OnBestCallback,
    PreparedRun,
    Task,
    Validation,
    ValidationSample,
    evaluation_mode,
    format_count,
    format_left_out,
)
from regard.tokenizers.tokenizer import TextSettings, Tokenizers, save_tokenizers
from regard.translate import Translator, load
from regard.translate.inspection import choose_alignment_head

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TranslationValidator:
    """Validate on the encoded dev set: cross-entropy per token, perplexity, greedy BLEU and chrF, sample translations.

    `language`, `tokenize` and `best` are those of `ValidationScorer`.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizers: Tokenizers,
        batch_tokens: int,
        num_translated: int,
        language: str | None = None,
        tokenize: str = "auto",
        best: str = "score",
    ) -> None:
        nonempty = [pair for pair in pairs if pair.source.strip() and pair.target.strip()]
        self.pairs = nonempty
        self.tokenizers = tokenizers
        self.batch_tokens = batch_tokens
        self.num_translated = min(num_translated, len(nonempty))
        references = [[tokenizers.target.lower_dotless_i(pair.target)] for pair in nonempty[: self.num_translated]]
        # Case is not scored if the vocabulary has none.
        self.scorer = ValidationScorer(references, language, tokenize, best, tokenizers.target.lowercase)
        self.dataset = ParallelDataset(
            RaggedArray.from_rows(tokenizers.source.encode(pair.source) for pair in nonempty),
            RaggedArray.from_rows(tokenizers.target.encode(pair.target) for pair in nonempty),
        )

    def __call__(self, model: Seq2Seq, device: torch.device) -> Validation:
        """Return the metrics of a model; leave the model and the random generators unchanged."""
        with evaluation_mode(model):
            loss = self._compute_loss(model, device)
            hypotheses = self._translate_greedily(model, device)
        texts = [self.tokenizers.target.decode(hypothesis.tokens) for hypothesis in hypotheses]
        samples = [self._make_sample(row, hypotheses[row], texts[row]) for row in range(min(SAMPLES, len(hypotheses)))]
        metrics = {"perplexity": math.exp(min(loss, 100.0)), **self.scorer.score(texts)}
        return Validation(loss, metrics, self.scorer.selection_metric, samples)

    @torch.inference_mode()
    def _compute_loss(self, model: Seq2Seq, device: torch.device) -> float:
        """Return the cross-entropy per target token over the whole dev set, without label smoothing."""

        def sum_batch_loss(rows: Indices) -> tuple[float, float]:
            batch = self.dataset.make_batch(rows).to(device)
            logits, target = model(batch.source, batch.lengths, batch.target_in).float(), batch.target_out
            total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
            return total.item(), (target != PAD).sum().item()

        batch_losses = map_batches(sum_batch_loss, self.dataset.sizes, self.batch_tokens)
        return sum(total for total, _ in batch_losses) / max(1.0, sum(tokens for _, tokens in batch_losses))

    def _translate_greedily(self, model: Seq2Seq, device: torch.device) -> list[Hypothesis]:
        """Return greedy translations of the first `num_translated` sentences."""

        def decode_greedily(rows: Indices) -> list[Hypothesis]:
            batch = self.dataset.make_batch(rows).to(device)
            return [hypotheses[0] for hypotheses in search(model, batch.source, batch.lengths, beam=1)]

        return map_batches_in_order(decode_greedily, self.dataset.sizes[: self.num_translated], self.batch_tokens)

    def _make_sample(self, row: int, hypothesis: Hypothesis, text: str) -> ValidationSample:
        pair, (source, target) = self.pairs[row], self.tokenizers
        texts = {"source": pair.source, "reference": pair.target, "translation": text}

        def plot() -> Figure | None:
            source_tokens = [*source.convert_ids_to_tokens(self.dataset.source[row].tolist()), SPECIAL_TOKENS[EOS]]
            target_tokens = target.convert_ids_to_tokens(hypothesis.tokens)
            if hypothesis.attention is None:
                return None
            return plot_heatmap(hypothesis.attention, source_tokens, target_tokens)

        return ValidationSample(texts, plot)


DEMO_PAIRS = 20_000
ALIGNED_PAIRS = 100  # dev pairs for choosing the alignment head; few, because training waits for it
MAX_ALIGNED_CHARACTERS = 500  # longer texts are skipped: the attention of all heads is in memory at once


def _make_head_writer(run: Run, dev: Sequence[Pair], tokenizers: Tokenizers) -> OnBestCallback | None:
    """Return a callback that chooses the best alignment head (layer, head) on dev pairs and writes it to the run."""
    short = [pair for pair in dev if all(side.strip() and len(side) <= MAX_ALIGNED_CHARACTERS for side in pair)]
    aligned = short[:ALIGNED_PAIRS]

    def write_best_head(model: Seq2Seq, device: torch.device) -> None:
        if model.decoder.alignment_heads():
            run.write_alignment_head(choose_alignment_head(model, tokenizers, aligned, device))

    return write_best_head if aligned else None


_MAX_READ_PAIRS = 100_000  # of each corpus
_MAX_CHECKED_PAIRS = 10_000  # about so many of those read, which takes less than a second


def _log_noise(data: DataSettings) -> None:
    """Log what is left out of each corpus when it is read, and what `regard data clean` would remove.

    Of a large corpus this is estimated by a sample, which the hashes of the pairs decide: all copies of a pair are in
    it or none, so duplicates are as frequent in it as in all pairs.
    """
    for corpus in list_corpora(data):
        request = make_language_request(corpus.paths, *data.languages)
        first, pairs = peek_pairs(iterate_pairs(corpus.paths, request=request))
        pipeline = FilterPipeline(make_default_filters(find_main_scripts(first)))
        read = list(islice(pairs, _MAX_READ_PAIRS))
        interval = -(-len(read) // _MAX_CHECKED_PAIRS)
        checked = read if interval < 2 else [pair for pair in read if hash_text(*pair) % interval == 0]
        num_removed = sum(not pipeline.accepts(pair) for pair in checked)
        names = " ".join(map(str, corpus.paths))
        is_part = len(read) == _MAX_READ_PAIRS
        number = f"{'the first ' if is_part else ''}{len(read):,} pairs"
        if request.num_incomplete:
            at_least = "at least " if is_part else ""
            log_message(
                f"{names}: left out, because they lack one of the languages: {at_least}{request.num_incomplete:,}"
            )
        if num_removed:
            reasons = {rule: count for rule, count in pipeline.num_rejected.items() if count}
            if len(checked) == len(read):
                removed, listed = f"{num_removed:,}", [f"{count:,} {rule}" for rule, count in reasons.items()]
            else:
                percent = 100 / len(checked)
                removed, number = f"about {percent * num_removed:.1f} %", f"{number}, by a sample of {len(checked):,}"
                listed = [f"{percent * count:.1f} % {rule}" for rule, count in reasons.items()]
            log_message(f"{names}: regard data clean would remove {removed} of {number} ({', '.join(listed)})")


def _describe_translation_data(
    data: DataSettings, prepared: PreparedCorpus, num_dev_pairs: int, tokenizers: Tokenizers
) -> str:
    direction = f"{data.source} → {data.target}, " if data.source and data.target else ""
    pairs = format_count(len(prepared.dataset), "pairs", format_left_out(prepared.left_out))
    source_size, target_size = tokenizers.vocab_sizes
    return f"{direction}{pairs}, {num_dev_pairs:,} dev pairs, vocabularies {source_size:,} and {target_size:,}"


def _load_guided_alignments(config: RunConfig, data: DataSettings, found: CorpusSplit) -> list[frozenset[Link]] | None:
    """Return the gold alignment links of the training pairs for guided attention; None if `loss.guided` is 0."""
    weight = config.recipe["loss"]["guided"]
    if not weight:
        return None
    if data.alignments is None:
        raise UserError(f"loss.guided={weight} needs data.alignments: a file with the links of each training pair")
    pairs = [pair for corpus in list_corpora(data) for pair in read_all_pairs(corpus.paths, data.source, data.target)]
    gold = read_gold_alignments(Path(data.alignments), pairs, presegmented=True)
    held_out = found.held_out_sources
    return [links.possible for pair, links in zip(pairs, gold, strict=True) if pair.source not in held_out]


def _infer_languages(config: RunConfig) -> RunConfig:
    """Return the config with the languages of the first corpus; warn if the other files seem to differ."""
    data: DataSettings = config.data
    for key, code in (("source", data.source), ("target", data.target)):
        if code and not is_language_code(code):
            raise UserError(f"data.{key}={short_repr(code)} is no language code, such as de, deu or pt-BR")
    corpora = list_corpora(data)
    inferred = find_corpus_languages(corpora[0].paths, data.source, data.target)
    source = data.source or (inferred[0] if inferred[0] != "source" else None)
    target = data.target or (inferred[1] if inferred[1] != "target" else None)
    if source and target and normalize_language_code(source) == normalize_language_code(target):
        raise UserError(f"source {source} and target {target} are the same language; set data.source and data.target")
    dev = [Path(name) for name in data.dev or ()]
    for paths in [corpus.paths for corpus in corpora] + ([dev] if dev else []):
        warn_if_languages_differ(paths, source, target)
    return config.override({"data.source": source, "data.target": target})


def warn_if_languages_differ(paths: Sequence[Path], source: str | None, target: str | None) -> None:
    """Log a warning if file names end in other languages than the run's, as when the sides are swapped."""
    found, expected = find_corpus_languages(paths, source, target), (source or "any", target or "any")
    if any(map(are_different_languages, found, (source, target))):
        log_message(
            f"warning: {' '.join(map(str, paths))}: by name from {found[0]} to {found[1]}, but {expected[0]} to "
            f"{expected[1]} is expected; are the files in order?"
        )


class TranslationTask(Task):
    """Translate sentences; the data stay on disk, and a `Translator` is the predictor."""

    verb = "translates"
    command = "translate"
    demo_recipe = "vaswani2017-base"
    data_settings = DataSettings
    text_settings = TextSettings
    writes_text = True

    def prepare(self, run: Run, config: RunConfig, resume: bool) -> PreparedRun:
        """Split and encode the corpora, train or load the tokenizers, and resolve open values of the config."""
        config = config if resume else _infer_languages(config)
        data: DataSettings = config.data
        split = split_corpora(data, config.training.seed)
        counts = zip(list_corpora(data), split.counts, strict=True)
        num_pairs = sum(count for corpus, count in counts if not corpus.is_mixed)
        config = config if resume else config.resolve_auto_sizes(num_pairs)
        if not resume and is_rank0():
            _log_noise(data)
        settings: TextSettings = config.text
        links = _load_guided_alignments(config, data, split)
        if links is not None and settings.dropout:
            raise UserError(
                "loss.guided needs a fixed segmentation, and text.dropout (BPE dropout) changes it: choose one of them"
            )
        init_from = config.training.init_from
        parent = run if resume else Run(Path(init_from)) if init_from else None  # the run whose vocabularies are used
        tokenizers = parent.load_tokenizers() if parent else load_or_train_tokenizers(data, settings, split)
        prepared = prepare_training_pairs(data, settings, tokenizers, split, links)
        if not resume:
            if not (data.sentences or prepared.max_sentences):
                log_message(
                    "sentencex is not installed, so the sentences of each line were not counted and data.sentences "
                    "stays null. Where sentencex is installed, each sentence of a line is then translated by itself. "
                    "Install sentencex, or set data.sentences"
                )
            longest, sentences = data.longest or prepared.longest, data.sentences or prepared.max_sentences
            config = config.override({"data.longest": longest, "data.sentences": sentences})
        training = config.training
        limits = training.batch_tokens, training.validate_pairs
        tokenize = config.evaluation.tokenize
        validator = TranslationValidator(split.dev, tokenizers, *limits, data.target, tokenize, training.best)
        validator.scorer.log_choice(training.best)
        config = config.override({"evaluation.tokenize": validator.scorer.tokenizer})
        return PreparedRun(
            run,
            config,
            prepared.dataset,
            validator,
            tokenizers.vocab_sizes,
            partial(save_tokenizers, tokenizers, settings),
            _describe_translation_data(data, prepared, len(split.dev), tokenizers),
            _make_head_writer(run, split.dev, tokenizers) if config.model.get("align_layer") == "auto" else None,
            tokenizers.source,
        )

    def load(self, *runs: str | Path, device: str | torch.device | None = None) -> Translator:
        """Load the best checkpoint of a run, or of several runs as an ensemble; by default on a GPU if there is one."""
        return load(*runs, device=device)

    def load_dev_set(self, config: RunConfig) -> list[DevExample]:
        """Return the dev pairs of a run, given its config."""
        return [DevExample(pair.source, pair.target) for pair in split_corpora(config.data, config.training.seed).dev]

    def write_synthetic_corpus(self, folder: Path, pair: str = DEFAULT_PAIR) -> SyntheticCorpus:
        """Write the data of the task's demo into a folder."""
        counts = write_translation_corpus(folder, DEMO_PAIRS, overwrite=True, pair=pair)
        log_message(
            f"corpus in {folder}: {counts['train']:,} pairs to train on, {counts['dev']:,} dev, {counts['test']:,} test"
        )
        train, dev, test = ([folder / f"{name}.{side}" for side in pair.split("-")] for name in counts)
        if pair == DEFAULT_PAIR:
            return SyntheticCorpus(train, dev, test, **CORPUS_WORDS["translation"])
        words = [test[0], test[1].with_suffix(f".words{test[1].suffix}")]
        return SyntheticCorpus(train, dev, test, **CORPUS_WORDS[f"translation-{pair}"], test_words=words)
