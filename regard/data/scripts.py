"""The writing systems of letters."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import cache

from regard.data.languages import canonical_code
from regard.errors import UserError, nearest

# By a word of the letters' names in Unicode. A Japanese sentence mixes three of them, so they go together.
NAMES = {
    "LATIN": "latin",
    "GREEK": "greek",
    "CYRILLIC": "cyrillic",
    "ARMENIAN": "armenian",
    "GEORGIAN": "georgian",
    "HEBREW": "hebrew",
    "ARABIC": "arabic",
    "SYRIAC": "syriac",
    "ETHIOPIC": "ethiopic",
    "DEVANAGARI": "devanagari",
    "BENGALI": "bengali",
    "GURMUKHI": "gurmukhi",
    "GUJARATI": "gujarati",
    "ORIYA": "oriya",
    "TAMIL": "tamil",
    "TELUGU": "telugu",
    "KANNADA": "kannada",
    "MALAYALAM": "malayalam",
    "SINHALA": "sinhala",
    "THAI": "thai",
    "LAO": "lao",
    "TIBETAN": "tibetan",
    "MYANMAR": "myanmar",
    "KHMER": "khmer",
    "MONGOLIAN": "mongolian",
    "HANGUL": "hangul",
    "CJK": "cjk",
    "IDEOGRAPHIC": "cjk",
    "HIRAGANA": "cjk",
    "KATAKANA": "cjk",
    "KATAKANA-HIRAGANA": "cjk",
    "BOPOMOFO": "cjk",
}
SIGNS = {"SIGN", "SYMBOL", "INDICATOR", "MATHEMATICAL", "MODIFIER", "TURNED", "ROMAN", "SCRIPT", "BLACK-LETTER"}
SIGNS |= {"DOUBLE-STRUCK", "ITALIC"}
KNOWN = sorted(set(NAMES.values()))
UNSPACED_SCRIPTS = frozenset({"cjk", "thai", "lao", "tibetan", "myanmar", "khmer"})
UNSPACED_LANGUAGES = frozenset(  # Chinese languages, Japanese, Thai, Lao, Khmer, Burmese, Tibetan, Dzongkha
    {"zh", "yue", "wuu", "nan", "hak", "lzh", "ja", "th", "lo", "km", "my", "bo", "dz"}
)
MIXED = 0.75  # a side has a usual script where so many of its letters share one


@cache
def script(character: str) -> str | None:
    """A letter's script, `other` for a rare one; None for what is no letter, or belongs to no script (ª, µ, ℝ)."""
    if not unicodedata.category(character).startswith("L"):
        return None
    name = unicodedata.name(character, "").split()
    found = next((NAMES[word] for word in name if word in NAMES), "other")
    return None if found == "other" and SIGNS & set(name) else found


def scripts(characters: Mapping[str, int]) -> Counter[str]:
    """How many letters of each script there are among counted characters."""
    counts: Counter[str] = Counter()
    for character, count in characters.items():
        if (found := script(character)) is not None:
            counts[found] += count
    return counts


def usual(characters: Mapping[str, int]) -> str | None:
    """The script of a text; None where it mixes several, or has no letters."""
    counts = scripts(characters)
    name, most = counts.most_common(1)[0] if counts else ("", 0)
    return name if most and most >= MIXED * counts.total() else None


def has_spaces(text: str, language: str | None = None) -> bool:
    """Whether words are separated by spaces, by the language's code or by the script of most letters.

    >>> has_spaces("a small house"), has_spaces("一座小房子"), has_spaces("", "zh-Hans")
    (True, False, False)
    """
    if language and canonical_code(language).partition("-")[0] in UNSPACED_LANGUAGES:
        return False
    counts = scripts(Counter(text))
    return 2 * sum(counts[name] for name in UNSPACED_SCRIPTS) <= counts.total()


def known(name: str) -> str:
    """A script by its name."""
    if name not in KNOWN:
        raise UserError(f"there is no script {name!r} here{nearest(name, KNOWN)}")
    return name
