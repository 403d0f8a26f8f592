"""Languages: their codes and names, and detection of the language of a text."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import cache
from typing import NamedTuple

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from regard.data.languages import normalize_language_code
from regard.tokenizers.markup import remove_urls

AUTO = "auto"
INTERNAL_CODES = {
    **{"pt-br": "pb", "zh-hans": "zh", "zh-cn": "zh", "zh-sg": "zh"},
    **dict.fromkeys(("zh-hant", "zh-tw", "zh-hk", "zh-mo"), "zt"),
}
PUBLIC_CODES = {"pb": "pt-BR", "zh": "zh-Hans", "zt": "zh-Hant"}
# The detector may know one, and the other be served.
VARIANTS = {"pt": "pb", "pb": "pt", "zh": "zt", "zt": "zh", "nb": "no", "no": "nb", "fil": "tl"}
MAX_DETECTIONS = 3
SAMPLE_SIZE = 5000  # characters that detection reads
URL_SEARCH_SIZE = 4 * SAMPLE_SIZE  # characters from which URLs are removed to get a sample


def internal_code(code: str) -> str:
    """Normalize a language code: lower case, one code for each language: `de` for `deu`, `zt` for `zh-TW`."""
    normal = normalize_language_code(code.strip())
    return INTERNAL_CODES.get(normal, normal)


def public_code(code: str) -> str:
    """Return the code of a language in responses."""
    return PUBLIC_CODES.get(code, code)


def display_name(code: str) -> str:
    """Return the English name of a language, or its code if it has none."""
    try:
        name = Locale.parse(public_code(code), sep="-").get_display_name("en")
    except (UnknownLocaleError, ValueError):
        return code
    return name or code


def name_language(code: str) -> dict[str, str]:
    """Return code and name of a language, as responses have them."""
    return {"code": public_code(code), "name": display_name(code)}


class Detection(NamedTuple):
    """Detected language, with a confidence from 0 to 100."""

    language: str
    confidence: float


UNDETECTED = Detection("en", 0.0)  # for a text without letters


class LanguageDetector:
    """Detect which of some languages a text is in; languages that the identifier does not know are `unknown`."""

    def __init__(self, codes: Iterable[str]) -> None:
        served, known = sorted(set(codes)), sorted(map(str, _load_identifier().labels))
        labels = {internal_code(label): label for label in known} | {label: label for label in known}
        self.codes_by_label = {labels[code]: code for code in served if code in labels}
        for code in served:  # served variants, and regions of a language
            for variant in (VARIANTS.get(code, ""), code.partition("-")[0]):
                if variant in labels:
                    self.codes_by_label.setdefault(labels[variant], code)
        self.unknown = [code for code in served if code not in self.codes_by_label.values()]
        # A shallow copy: restricting its languages leaves the model as it is.
        self.identifier = copy(_load_identifier())
        if self.codes_by_label:
            self.identifier.set_languages(list(self.codes_by_label))

    def __call__(self, text: str) -> list[Detection]:
        """Return the most probable languages, best first."""
        sample = _sample(text)
        if not self.codes_by_label or not any(map(str.isalpha, sample)):
            return [UNDETECTED]
        ranking = self.identifier.rank(sample)[:MAX_DETECTIONS]
        detections = [
            Detection(self.codes_by_label[str(label)], round(100 * float(probability), 1))
            for label, probability in ranking
        ]
        return [detection for detection in detections if detection.confidence > 0] or [UNDETECTED]

    def confirm(self, text: str, language: str) -> bool:
        """Return whether a text is in a language even if it could be in any that the identifier knows."""
        return self.codes_by_label.get(str(_load_identifier().classify(_sample(text))[0])) == language


@cache
def _load_identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def has_letters(text: str) -> bool:
    """Return whether a text has a letter outside of URLs, and thus something to translate.

    White space ends every URL, so each word can be judged alone: other threads run between two searches.
    """
    return any(any(map(str.isalpha, remove_urls(word))) for word in text.split())


def _sample(text: str) -> str:
    """Return the beginning of a text without URLs."""
    return remove_urls(text[:URL_SEARCH_SIZE])[:SAMPLE_SIZE]
