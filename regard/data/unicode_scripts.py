"""Unicode scripts (writing systems) of letters, and languages written without spaces."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import cache

from regard.data.language_pair import normalize_language_code
from regard.errors import UserError, format_suggestion

_NAMES = (
    "arabic armenian bengali cjk cyrillic devanagari ethiopic georgian greek gujarati gurmukhi hangul hebrew kannada "
    "khmer lao latin malayalam mongolian myanmar oriya sinhala syriac tamil telugu thai tibetan"
)
_KNOWN_SCRIPTS = _NAMES.split()
# By a word in the letters' Unicode names. A Japanese sentence mixes three of these scripts, so they count as one.
_SCRIPTS_BY_NAME_WORD = {name.upper(): name for name in _KNOWN_SCRIPTS} | dict.fromkeys(
    ("IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO"), "cjk"
)
_SYMBOL_WORDS = {"SIGN", "SYMBOL", "INDICATOR", "MATHEMATICAL", "MODIFIER", "TURNED", "ROMAN", "SCRIPT", "BLACK-LETTER"}
_SYMBOL_WORDS |= {"DOUBLE-STRUCK", "ITALIC"}
_UNSPACED_SCRIPTS = frozenset({"cjk", "thai", "lao", "tibetan", "myanmar", "khmer"})
_UNSPACED_LANGUAGES = frozenset(  # Chinese languages, Japanese, Thai, Lao, Khmer, Burmese, Tibetan, Dzongkha
    {"zh", "yue", "wuu", "nan", "hak", "lzh", "ja", "th", "lo", "km", "my", "bo", "dz"}
)
_MAIN_SCRIPT_FRACTION = 0.75  # of the letters of a text must be in its main script


@cache
def find_script(character: str) -> str | None:
    """Return the script of a letter, or `other` if it is rare; None for other characters and symbols (ª, µ, ℝ)."""
    if not unicodedata.category(character).startswith("L"):
        return None
    name = unicodedata.name(character, "").split()
    script = next((_SCRIPTS_BY_NAME_WORD[word] for word in name if word in _SCRIPTS_BY_NAME_WORD), "other")
    return None if script == "other" and _SYMBOL_WORDS & set(name) else script


def count_scripts(characters: Mapping[str, int]) -> Counter[str]:
    """Count the letters of each script, given counts of characters."""
    counts: Counter[str] = Counter()
    for character, count in characters.items():
        if (script := find_script(character)) is not None:
            counts[script] += count
    return counts


def find_main_script(characters: Mapping[str, int]) -> str | None:
    """Return the script of most letters of a text; None if it mixes several or has no letters."""
    counts = count_scripts(characters)
    name, most = counts.most_common(1)[0] if counts else ("", 0)
    return name if most and most >= _MAIN_SCRIPT_FRACTION * counts.total() else None


def has_spaces(text: str, language: str | None = None) -> bool:
    """Return True if words are separated by spaces, judged by the language code or by the script of most letters.

    >>> has_spaces("a small house"), has_spaces("一座小房子"), has_spaces("", "zh-Hans")
    (True, False, False)
    """
    if language and normalize_language_code(language).partition("-")[0] in _UNSPACED_LANGUAGES:
        return False
    counts = count_scripts(Counter(text))
    return 2 * sum(counts[name] for name in _UNSPACED_SCRIPTS) <= counts.total()


def check_script_name(name: str) -> str:
    """Return the name of a script; raise a UserError if it is unknown."""
    if name not in _KNOWN_SCRIPTS:
        raise UserError(f"there is no script {name!r}{format_suggestion(name, _KNOWN_SCRIPTS)}")
    return name
