"""Words, grapheme clusters and sentences of a text.

Words are between spaces, or found by a segmenter in scripts without spaces.

Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan put no spaces between words. ICU (the package `icu4py`) finds
their words with its dictionaries; without it each grapheme cluster counts as a word, except for runs of Latin letters,
digits or Katakana. URLs are one word. In other scripts words are what is between spaces, with their punctuation, as in
Pharaoh alignments. Sentences are found by sentencex.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from itertools import accumulate, pairwise

import regex

from regard.console import log_message
from regard.special_tokens import SPECIAL_TOKENS, UNK
from regard.tokenizers.markup import URL_OR_PLACEHOLDER
from regard.tokenizers.tokenizer import Span, has_long_characters

# Letters, marks and digits of scripts without spaces between words (Hangul has spaces), and wide punctuation.
UNSPACED_CHARACTERS = (
    "\u0e01-\u0e3a\u0e40-\u0e5b\u0e81-\u0edf\u0f00-\u0fda\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\ua9e0-\ua9fe"
    "\uaa60-\uaa7f\u2e80-\u2fd5\u3001-\u3003\u3005-\u3011\u3014-\u301f\u3021-\u302f"
    "\u3031-\u3035\u3038-\u303c\u3041-\u312f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff5b-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{UNSPACED_CHARACTERS}]")
_WHITE_SPACE_WORD = re.compile(r"\S+")
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30fe\u31f0-\u31ff\uff66-\uff9f"
# Without ICU: runs of Katakana, runs of letters and digits of scripts with spaces, or one grapheme cluster.
_CLUSTER_OR_RUN = regex.compile(rf"[{_KATAKANA}]+|[[\p{{L}}\p{{M}}\p{{N}}_]--[{UNSPACED_CHARACTERS}]]+|\X", regex.V1)
_UNDIVIDED = re.compile(f"({URL_OR_PLACEHOLDER.pattern}|{SPECIAL_TOKENS[UNK]})", re.IGNORECASE)
_GRAPHEME_CLUSTER = regex.compile(r"\X")

_KHMER_SENTENCE = re.compile(r"[^។៕]+[។៕]*[\s»”’)]*|[។៕]+[\s»”’)]*")
_QUOTATION_END, _QUOTED_BEFORE = re.compile("[」』]$"), re.compile("と|って|など|、")  # Japanese: the sentence goes on
SENTENCE_WINDOW = 4000  # characters that sentencex sees at once: its time grows with their square, and it holds the GIL


def find_word_spans(text: str, with_icu: bool | None = None) -> list[Span]:
    """Return the start and end of each word, by default found by ICU if it is installed.

    >>> find_word_spans("a small house.")
    [(0, 1), (2, 7), (8, 14)]
    """
    spans = [match.span() for match in _WHITE_SPACE_WORD.finditer(text)]
    if not has_unspaced_script(text):
        return spans
    with_icu = _has_icu() if with_icu is None else with_icu
    return [span for start, end in spans for span in _divide_chunk(text, start, end, with_icu)]


def split_words(text: str, with_icu: bool | None = None) -> list[str]:
    """Return the words of a text.

    >>> split_words("a small house.")
    ['a', 'small', 'house.']
    """
    if not has_unspaced_script(text):
        return text.split()
    return [text[start:end] for start, end in find_word_spans(text, with_icu)]


def has_unspaced_script(text: str) -> bool:
    """Return True if a text has characters of a script without spaces between words."""
    return has_long_characters(text) and _UNSPACED.search(text) is not None


def split_graphemes(text: str) -> list[str]:
    """Return the grapheme clusters of a text: what a reader takes for one character.

    >>> split_graphemes("नमस्ते")[0], len(split_graphemes("👩‍👩‍👧e\u0301"))
    ('न', 2)
    """
    return list(text) if text.isascii() else _GRAPHEME_CLUSTER.findall(text)


def join_words(words: Iterable[str]) -> str:
    """Join words by spaces, except where one ends and the next begins in a script without spaces.

    >>> join_words(["大きな", "家", "。"]), join_words(["the", "iPhone"])
    ('大きな家。', 'the iPhone')
    """
    parts = [""]
    for word in words:
        parts += [" " * needs_space(parts[-1], word), word]
    return "".join(parts)


def needs_space(left: str, right: str) -> bool:
    """Return True if two neighbouring words are separated by a space: not beside a script without spaces."""
    return bool(left and right) and not (_UNSPACED.match(left[-1]) or _UNSPACED.match(right[0]))


def is_segmenter_installed() -> bool:
    """Return True if ICU is installed, whose dictionaries know words of scripts without spaces."""
    try:
        import icu4py.breakers  # noqa: F401
    except ImportError:
        return False
    return True


def _divide_chunk(text: str, start: int, end: int, with_icu: bool) -> list[Span]:
    """Return the words between two spaces; characters that are not visible belong to none."""
    chunk = text[start:end]
    if not _UNSPACED.search(chunk):
        return [(start, end)]
    segment = _segment_with_icu if with_icu else _CLUSTER_OR_RUN.findall
    pieces = enumerate(_UNDIVIDED.split(chunk))
    parts = [part for index, piece in pieces for part in ([piece] if index % 2 else segment(piece)) if part]
    bounds = pairwise(accumulate(map(len, parts), initial=start))
    return [span for span, part in zip(bounds, parts, strict=True) if not _is_invisible(part)]


_has_icu = cache(is_segmenter_installed)


def _segment_with_icu(chunk: str) -> Sequence[str]:
    from icu4py.breakers import WordBreaker

    return list(WordBreaker(chunk, "en"))  # the dictionaries do not depend on the language


def _is_invisible(part: str) -> bool:
    return all(unicodedata.category(character) in ("Cf", "Zs") for character in part)  # such as the zero-width space


def split_sentences(text: str, language: str | None) -> list[str]:
    """Return the sentences of a text, each with the white space that follows it: joined, they are the text.

    A sentence of more than 4,000 characters is split between words.
    """
    if not _is_splitter_installed():
        return [text]
    code, sentences, start = (language or "en").partition("-")[0], list[str](), 0
    while len(text) - start > SENTENCE_WINDOW:
        complete = _keep_complete(_find_sentences(code, text[start : start + SENTENCE_WINDOW]))
        sentences += complete
        start += sum(map(len, complete))
    return [*sentences, *_find_sentences(code, text[start:])]


def _find_sentences(code: str, text: str) -> list[str]:
    """Return the sentences that sentencex finds, split after Khmer full stops, and not between 」 and と."""
    from sentencex import segment  # slow to load, and may be missing in a checkout without its dependencies

    sentences = list(segment(code, text))
    if not has_long_characters(text):
        return sentences
    joined: list[str] = []
    for part in (part for sentence in sentences for part in _KHMER_SENTENCE.findall(sentence)):
        if joined and _QUOTATION_END.search(joined[-1]) and _QUOTED_BEFORE.match(part):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _keep_complete(sentences: list[str]) -> list[str]:
    """Return the sentences of a window that end in its first half, or its first one; a single one is cut after a word.

    What follows in the second half tells whether they end there: a quotation is one sentence if its end is seen.
    """
    ends = list(accumulate(map(len, sentences[:-1])))
    if ends:
        return sentences[: max(1, bisect_right(ends, SENTENCE_WINDOW // 2))]
    words = sentences[0].rsplit(maxsplit=1)
    is_word_cut = len(words) == 2 and not sentences[0][-1].isspace()
    return [sentences[0][: -len(words[-1])] if is_word_cut else sentences[0]]


@cache
def _is_splitter_installed() -> bool:
    """Return True if sentencex is installed; log once if not."""
    if find_sentencex_version() is None:
        log_message("sentencex is not installed: a line of several sentences is translated as one")
        return False
    return True


@cache
def find_sentencex_version() -> str | None:
    """Return the version of sentencex, or None if it is not installed."""
    try:
        import sentencex  # noqa: F401
    except ImportError:
        return None
    try:
        return metadata.version("sentencex")
    except metadata.PackageNotFoundError:  # a copy that was not installed by pip
        return "unknown"
