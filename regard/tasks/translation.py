"""How good the model is on the dev set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.config import parse_settings
from regard.console import log_message
from regard.data.dataset import ParallelDataset
from regard.data.indexed_dataset import Indices, RaggedArray
from regard.data.language_pair import are_different_languages, normalize_language_code
from regard.data.prepare import PreparedCorpus, load_or_train_tokenizers, prepare_training_pairs
from regard.data.readers.dispatch import Pair, find_corpus_languages, read_all_pairs
from regard.data.sentence_pair import Link
from regard.data.settings import DataSettings, list_corpora
from regard.data.split import CorpusSplit, split_corpora
from regard.errors import UserError
from regard.evaluate import read_gold_alignments
from regard.models import Seq2Seq
from regard.plot import plot_heatmap
from regard.recipes import Recipe, override, resolve_auto_sizes
from regard.runs import Run
from regard.runs.run import write_alignment_head
from regard.search import Floats, Hypothesis, search
from regard.special_tokens import EOS, PAD, SPECIAL_TOKENS
from regard.tasks.base import (
    DevExample,
    OnBestCallback,
    PreparedRun,
    Task,
    Validation,
    choose_selection_metric,
    map_batches,
    map_batches_in_order,
    report_selection_metric,
    score_texts,
)
from regard.tokenizers import TextSettings, Tokenizers, save_tokenizers
from regard.translate import choose_alignment_head, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SAMPLES = 5


class TranslationSample(NamedTuple):
    """A sentence of the dev set as the model translates it now."""

    source: str
    reference: str
    translation: str
    source_tokens: Sequence[str] = ()
    tokens: Sequence[str] = ()
    attention: Floats | None = None  # tokens × source tokens

    def to_dict(self) -> dict[str, str]:
        """Source, reference and translation."""
        return {"source": self.source, "reference": self.reference, "translation": self.translation}

    def plot(self) -> Figure | None:
        """The heat map."""
        return None if self.attention is None else plot_heatmap(self.attention, self.source_tokens, self.tokens)


class TranslationValidator:
    """The dev set, encoded once: cross-entropy per token, its perplexity, greedy BLEU, and some sentences.

    BLEU counts words between spaces. If the target language has none (Chinese, Japanese, Thai and others), by the code
    `language` or by the script of the references, chrF is measured, too, and is what says which model is the best.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizers: Tokenizers,
        batch_tokens: int,
        num_translated: int,
        language: str | None = None,
    ) -> None:
        whole = [pair for pair in pairs if pair.source.strip() and pair.target.strip()]
        self.pairs = whole
        self.tokenizers = tokenizers
        self.batch_tokens = batch_tokens
        self.num_translated = min(num_translated, len(whole))
        self.references = [pair.target for pair in whole[: self.num_translated]]
        self.selection_metric = choose_selection_metric(self.references, language)
        self.dataset = ParallelDataset(
            RaggedArray.from_rows(tokenizers.source.encode(pair.source) for pair in whole),
            RaggedArray.from_rows(tokenizers.target.encode(pair.target) for pair in whole),
        )

    def __call__(self, model: Seq2Seq, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        loss = self._compute_loss(model, device)
        found = self._translate_greedily(model, device)
        model.train(training)
        texts = [self.tokenizers.target.decode(hypothesis.tokens) for hypothesis in found]
        samples = [self._make_sample(row, found[row], texts[row]) for row in range(min(SAMPLES, len(found)))]
        lowercase = self.tokenizers.target.lowercase  # what it cannot write is no mistake
        figures = score_texts(texts, [[reference] for reference in self.references], self.selection_metric, lowercase)
        return Validation(loss, {"perplexity": math.exp(min(loss, 100.0)), **figures}, self.selection_metric, samples)

    @torch.inference_mode()
    def _compute_loss(self, model: Seq2Seq, device: torch.device) -> float:
        """Cross-entropy per target token over the whole dev set, without label smoothing."""

        def sum_batch_loss(rows: Indices) -> tuple[float, float]:
            batch = self.dataset.make_batch(rows).to(device)
            logits, target = model(batch.source, batch.lengths, batch.target_in).float(), batch.target_out
            total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
            return total.item(), (target != PAD).sum().item()

        found = map_batches(sum_batch_loss, self.dataset.sizes, self.batch_tokens)
        return sum(total for total, _ in found) / max(1.0, sum(tokens for _, tokens in found))

    def _translate_greedily(self, model: Seq2Seq, device: torch.device) -> list[Hypothesis]:
        """Greedy translations of the first `translated` sentences."""

        def decode_greedily(rows: Indices) -> list[Hypothesis]:
            batch = self.dataset.make_batch(rows).to(device)
            return [hypotheses[0] for hypotheses in search(model, batch.source, batch.lengths, beam=1)]

        return map_batches_in_order(decode_greedily, self.dataset.sizes[: self.num_translated], self.batch_tokens)

    def _make_sample(self, row: int, hypothesis: Hypothesis, text: str) -> TranslationSample:
        """A sentence, its translation, and where the model looked."""
        pair, (source, target) = self.pairs[row], self.tokenizers
        read = [*source.convert_ids_to_tokens(self.dataset.source[row].tolist()), SPECIAL_TOKENS[EOS]]
        return TranslationSample(
            *pair, text, read, target.convert_ids_to_tokens(hypothesis.tokens), hypothesis.attention
        )


ALIGNED_PAIRS = 100  # by which the alignment head is chosen: few, because each new best model waits for it
MAX_ALIGNED_CHARACTERS = 500  # the attention of every head to a text is in memory at once


def prepare_translation(run: Run, config: Recipe, resume: bool) -> PreparedRun:
    """Data and vocabularies, encoded; and the config with nothing left open."""
    config = config if resume else _infer_languages(config)
    data = parse_settings(DataSettings, config["data"], "data")
    found = split_corpora(data, config["training"]["seed"])
    config = config if resume else resolve_auto_sizes(config, sum(found.counts))
    settings = parse_settings(TextSettings, config["text"], "text")
    links = _load_guided_alignments(config, data, found)
    if links is not None and settings.dropout:
        raise UserError("loss.guided needs tokens that stay what they are, and text.dropout changes them: choose one")
    start = config["training"]["init_from"]
    if resume or start:
        tokenizers = (run if resume else Run(Path(start))).load_tokenizers()
    else:
        tokenizers = load_or_train_tokenizers(data, settings, found)
    ready = prepare_training_pairs(data, settings, tokenizers, found, links)
    if not resume:
        if not (data.sentences or ready.max_sentences):
            log_message(
                "sentencex is not installed, so that the sentences of a line were not counted: data.sentences stays "
                "null, and where sentencex is installed each sentence of a line is translated by itself. Install "
                "sentencex, or give data.sentences"
            )
        found_instead = {"longest": data.longest or ready.longest, "sentences": data.sentences or ready.max_sentences}
        config = override(config, {f"data.{name}": value for name, value in found_instead.items()})
    training = config["training"]
    batch_tokens, translated = int(training["batch_tokens"]), int(training["validate_pairs"])
    validator = TranslationValidator(found.dev, tokenizers, batch_tokens, translated, config["data"]["target"])
    report_selection_metric(validator.selection_metric, training["best"])
    return PreparedRun(
        run,
        config,
        ready.dataset,
        validator,
        tokenizers.vocab_sizes,
        partial(save_tokenizers, tokenizers, settings),
        _describe_translation_data(ready, len(found.dev), tokenizers),
        _make_alignment_head_writer(run, found.dev, tokenizers)
        if config["model"].get("align_layer") == "auto"
        else None,
    )


def _make_alignment_head_writer(run: Run, dev: Sequence[Pair], tokenizers: Tokenizers) -> OnBestCallback | None:
    """Return a function that writes the layer and head by which a model aligns best on the dev set into the run."""
    short = [pair for pair in dev if all(side.strip() and len(side) <= MAX_ALIGNED_CHARACTERS for side in pair)]
    aligned = short[:ALIGNED_PAIRS]

    def write_best_head(model: Seq2Seq, device: torch.device) -> None:
        if model.decoder.alignment_heads():
            write_alignment_head(run.folder, choose_alignment_head(model, tokenizers, aligned, device))

    return write_best_head if aligned else None


def load_translation_dev_set(run: Run) -> list[DevExample]:
    """The pairs that a run was validated on."""
    config = run.read_config()
    found = split_corpora(parse_settings(DataSettings, config["data"], "data"), config["training"]["seed"]).dev
    return [DevExample(pair.source, pair.target) for pair in found]


def _describe_translation_data(prepared: PreparedCorpus, num_dev_pairs: int, tokenizers: Tokenizers) -> str:
    """What there is to train on."""
    left_out = [
        f"{count} {reason}" for count, reason in ((prepared.empty, "empty"), (prepared.too_long, "too long")) if count
    ]
    return (
        f"{len(prepared.dataset):,} pairs{' (left out: ' + ', '.join(left_out) + ')' if left_out else ''}, "
        f"{num_dev_pairs:,} dev pairs, vocabularies {tokenizers.source.vocab_size:,} and {tokenizers.target.vocab_size:,}"
    )


def _load_guided_alignments(
    config: Mapping[str, Any], data: DataSettings, found: CorpusSplit
) -> list[frozenset[Link]] | None:
    """The links of the training pairs that guide the attention, if it is guided."""
    weight = config["loss"]["guided"]
    if not weight:
        return None
    if data.alignments is None:
        raise UserError(f"loss.guided={weight} needs data.alignments: a file with the links of each training pair")
    every = [pair for corpus in list_corpora(data) for pair in read_all_pairs(corpus.paths, data.source, data.target)]
    gold = read_gold_alignments(Path(data.alignments), every)
    return [
        links.possible for pair, links in zip(every, gold, strict=True) if pair.source not in found.held_out_sources
    ]


def _infer_languages(config: Mapping[str, Any]) -> Recipe:
    """The config with the languages that the first corpus says it is in: the others are read for these as well."""
    wanted = list_corpora(parse_settings(DataSettings, config["data"], "data"))
    if not wanted:
        raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
    first = wanted[0]
    requested = config["data"]["source"], config["data"]["target"]
    named = dict(zip(("source", "target"), find_corpus_languages(first.paths, *requested), strict=True))
    found = {f"data.{side}": config["data"][side] or (name if name != side else None) for side, name in named.items()}
    source, target = found["data.source"], found["data.target"]
    if source and target and normalize_language_code(source) == normalize_language_code(target):
        raise UserError(f"source {source} and target {target} are one language: a translation is from one into another")
    dev = [Path(name) for name in config["data"]["dev"] or ()]
    for paths in [corpus.paths for corpus in wanted] + ([dev] if dev else []):
        warn_if_languages_differ(paths, source, target)
    return override(config, found)


def warn_if_languages_differ(paths: Sequence[Path], source: str | None, target: str | None) -> None:
    """A word where files are named for other languages than the run's: sides that were swapped look like this."""
    for ending, wanted in zip(find_corpus_languages(paths, source, target), (source, target), strict=True):
        if are_different_languages(ending, wanted):
            named = " ".join(map(str, paths))
            log_message(
                f"{named}: by its name this is {ending}, but {wanted} is expected here; are the files in order?"
            )


__all__ = ["TASK", "TranslationSample", "TranslationValidator"]

TASK = Task(DataSettings, TextSettings, prepare_translation, load, load_translation_dev_set)
