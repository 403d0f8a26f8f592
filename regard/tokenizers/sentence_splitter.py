"""Sentence splitting with sentencex."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache
from importlib import metadata
from itertools import accumulate

from regard.console import log_message
from regard.tokenizers.tokenizer import has_long_characters

_KHMER_SENTENCE = re.compile(r"[^។៕]+[។៕]*[\s»”’)]*|[។៕]+[\s»”’)]*")
_QUOTATION_END, _QUOTED_BEFORE = re.compile("[」』]$"), re.compile("と|って|など|、")  # Japanese: the sentence goes on
WINDOW = 4000  # characters that sentencex sees at once: its time grows with their square, and it holds the GIL


def split_sentences(text: str, language: str | None) -> list[str]:
    """Return the sentences of a text, each with the white space that follows it: joined, they are the text.

    A sentence of more than 4,000 characters is split between words.
    """
    if not _is_splitter_installed():
        return [text]
    code, sentences, start = (language or "en").partition("-")[0], list[str](), 0
    while len(text) - start > WINDOW:
        complete = _keep_complete(_segment(code, text[start : start + WINDOW]))
        sentences += complete
        start += sum(map(len, complete))
    return [*sentences, *_segment(code, text[start:])]


def _segment(code: str, text: str) -> list[str]:
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
        return sentences[: max(1, bisect_right(ends, WINDOW // 2))]
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
