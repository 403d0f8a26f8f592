"""Language codes (ISO 639), scripts of letters, and the choice of source and target languages of a file."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from operator import itemgetter
from typing import NamedTuple

from regard.errors import UserError, format_suggestion, to_single_line

# Each language of ISO 639-1, then its other codes: of ISO 639-2 and 639-3, deprecated ones, and the individual language
# that the code of a macrolanguage usually means (`cmn` for `zh`).
_ISO_CODES = resources.files("regard.data").joinpath("iso_639.txt").read_text(encoding="ascii")
_SHORTEST_CODES = {code: codes.partition("-")[0] for codes in _ISO_CODES.split() for code in codes.split("-")}
_NORWEGIAN = frozenset({"nb", "nn"})  # two written languages, and `no` names either


@lru_cache(maxsize=1000)
def normalize_language_code(code: str) -> str:
    """Return a code in lower case with hyphens and the shortest code of its language: `de-at` for `deu_AT`."""
    language, hyphen, rest = code.lower().replace("_", "-").partition("-")
    return _SHORTEST_CODES.get(language, language) + hyphen + rest


def find_language(code: str) -> str | None:
    """Return the language of a code without script and region; None for other names, such as `txt` and `source`.

    A name of two letters counts as a code; one of three letters only if its language has a code of two as well.

    >>> find_language("de-AT"), find_language("ger"), find_language("txt")
    ('de', 'de', None)
    """
    language = normalize_language_code(code).partition("-")[0]
    return language if language.isalpha() and len(language) == 2 else None


def matches_language(code: str, wanted: str) -> bool:
    """Return True if `code` is the wanted language or a variant of it: `en-US` and `eng` are `en`, `en` is not `en-US`.

    `nb` and `nn` are not `no`, because one file may hold both.
    """
    code, wanted = normalize_language_code(code), normalize_language_code(wanted)
    return code == wanted or code.startswith(f"{wanted}-")


def are_different_languages(one: str | None, other: str | None) -> bool:
    """Return True for codes of different languages, such as `en` and `deu`; `en` and `en-US` are one language."""
    languages = {find_language(code) for code in (one, other) if code} - {None}
    return len(languages) == 2 and not ("no" in languages and languages & _NORWEGIAN)


is_language_code = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*").fullmatch  # en, deu, pt-BR, zh_Hans
_SIDE_OPTIONS = ("which is {}", "--{}", "data.{}=")  # how messages name a side: in words, as an option, as a recipe key
_REGION_SUFFIX = re.compile(r"[-_]([A-Za-z]{2}|[0-9]{3})$")


class LanguageError(UserError):
    """A file does not hold the languages that were requested."""


@dataclass
class LanguageRequest:
    """The requested languages, those in the name of the file, and those that the reader of the file chose.

    The requested languages select sides of a file that names its languages. For a file that names none they are
    accepted as names of its two sides only if `allow_unnamed`.
    """

    source: str | None = None
    target: str | None = None
    from_file_name: tuple[str, str] | None = None
    allow_unnamed: bool = True
    chosen: tuple[str, str] | None = None  # None: the file names none, or nothing was read yet
    num_incomplete: int = 0  # units of a TMX that were skipped, because they lack one of the languages
    document: str = ""  # of the last pair, if a TMX or XLIFF file names it

    def check_unnamed_file(self, where: str) -> None:
        """Raise a UserError if languages are requested (and `allow_unnamed` is false) of a file that names none."""
        if not self.allow_unnamed and (self.source or self.target):
            raise UserError(
                f"{where} names no languages, so that --source and --target have nothing to choose from: leave them out"
            )


class LanguagePair(NamedTuple):
    """The two languages to read. Not final: chosen from the languages seen so far; a third one must be reported."""

    source: str
    target: str
    is_final: bool


def deduplicate_languages(codes: Iterable[str]) -> list[str]:
    """Return each language once, in order, by its most general code: `en` if there are both `en-US` and `en`."""
    unique = dict.fromkeys(codes)
    general = (min((other for other in unique if matches_language(code, other)), key=len) for code in unique)
    return list(dict.fromkeys(general))


def merge_regions(codes: Sequence[str]) -> list[str]:
    """Reduce more than two codes to two languages if they differ in region only.

    >>> merge_regions(["en-GB", "en-US", "de-AT"]), merge_regions(["en", "pt-BR"])
    (['en', 'de'], ['en', 'pt-BR'])
    >>> merge_regions(["en", "zh-Hans", "zh-Hant"])
    ['en', 'zh-Hans', 'zh-Hant']
    """
    languages = list(dict.fromkeys(_REGION_SUFFIX.sub("", normalize_language_code(code)) for code in codes))
    return languages if len(codes) > 2 and len(languages) == 2 else list(codes)


def choose_language_pair(
    available: Sequence[str], request: LanguageRequest, where: str, declared_source: str | None = None
) -> LanguagePair:
    """Choose source and target among the languages of a file that may hold several.

    `declared_source` is the source language that the file itself names.
    """
    requested = [code for code in (request.source, request.target) if code]
    if not all(find_matching_code(available, code) for code in requested):
        raise _make_language_error(requested, available, where)
    if request.source and request.target:
        return LanguagePair(request.source, request.target, is_final=True)
    from_name = request.from_file_name
    if not requested and from_name and all(find_matching_code(available, code) for code in from_name):
        return LanguagePair(*from_name, is_final=True)
    languages = merge_regions(deduplicate_languages(available))
    if len(languages) < 2:
        raise UserError(f"{where} holds one language only ({format_languages(available)}); a pair has two")
    for known in requested:
        languages = [code for code in languages if not _is_variant(code, known)]
    if len(languages) != 2 - len(requested):
        sides = [side for side, code in (("source", request.source), ("target", request.target)) if not code]
        which, options, keys = (" and ".join(form.format(side) for side in sides) for form in _SIDE_OPTIONS)
        raise UserError(
            f"{where} holds {format_languages(available)}; say {which} by code "
            f"({options}, in training {keys}; en also means en-US)"
        )
    if requested:
        return LanguagePair(request.source or languages[0], request.target or languages[0], is_final=False)
    if declared_source and _is_variant(languages[1], declared_source):
        languages.reverse()
    return LanguagePair(languages[0], languages[1], is_final=False)


def choose_columns(names: Collection[str], request: LanguageRequest, where: str) -> tuple[str, str] | None:
    """Choose `source` and `target`, or two columns named by language codes; None if there are neither."""
    if "source" in names and "target" in names:
        request.check_unnamed_file(where)
        return "source", "target"
    codes = list(filter(is_language_code, dict.fromkeys(names)))
    requested = (request.source, request.target, *(request.from_file_name or ()))
    if len(codes) > 2 and "id" not in (find_language(code) for code in requested if code):
        codes = [code for code in codes if code != "id"]  # row numbers, unless Indonesian is requested
    if len(codes) < 2:
        return None
    pair = choose_language_pair(codes, request, where)
    request.chosen = find_matching_code(codes, pair.source) or "", find_matching_code(codes, pair.target) or ""
    return request.chosen


def is_reversed(codes: tuple[str, str], request: LanguageRequest, where: str) -> bool:
    """Return True if the sides of a file are to be swapped; `codes` are its languages, "" if unknown."""
    if not any(codes):
        request.check_unnamed_file(where)
    requested = [code for code in (request.source, request.target) if code]
    wanted = (request.source, request.target) if requested else request.from_file_name or (None, None)
    fits, fits_reversed = _match_as_far_as_known(codes, wanted), _match_as_far_as_known(codes[::-1], wanted)
    if requested and not (fits or fits_reversed):
        raise _make_language_error(requested, codes, where)
    is_swapped = fits_reversed and not fits
    if all(codes) and request.chosen is None:
        request.chosen = (codes[1], codes[0]) if is_swapped else codes
    return is_swapped


def _match_as_far_as_known(codes: Sequence[str], wanted: Sequence[str | None]) -> bool:
    """Return True if two languages match the wanted ones, ignoring those that are unknown."""
    return all(not want or not code or matches_language(code, want) for code, want in zip(codes, wanted, strict=True))


def _is_variant(one: str, other: str) -> bool:
    """Return True if one of two codes is a variant of the other."""
    return matches_language(one, other) or matches_language(other, one)


def find_matching_code(available: Collection[str], wanted: str) -> str | None:
    """Return the code in `available` that matches `wanted`: an equal one, else the first variant of it."""
    if wanted in available:
        return wanted
    codes = [code for code in available if matches_language(code, wanted)]
    return next((code for code in codes if matches_language(wanted, code)), codes[0] if codes else None)


def _make_language_error(requested: Sequence[str], available: Sequence[str], where: str) -> LanguageError:
    """Return the error for a file that does not hold the requested languages."""
    return LanguageError(f"{where} holds {format_languages(available)}, not {' and '.join(requested)}")


def format_languages(codes: Sequence[str]) -> str:
    """Return languages as a list for messages."""
    return ", ".join(to_single_line(code) for code in dict.fromkeys(codes) if code) or "no named language"


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
_LANGUAGES_BY_SCRIPT = {"cjk": "zh", "hangul": "ko", "thai": "th", "lao": "lo", "khmer": "km", "myanmar": "my"}
_LANGUAGES_BY_SCRIPT["tibetan"] = "bo"
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa\uff66-\uff9d]")
_MIN_KANA = 0.05  # of the letters of Japanese; Chinese quotes some
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


def find_asian_language(text: str, language: str | None = None) -> str | None:
    """Return the language if it has no spaces between words, or is Korean; None for all others.

    A code that is not of such a language may be wrong (`jp`, `cn`, `source`): then the script of most letters decides.

    >>> find_asian_language("大きな家"), find_asian_language("一座大房子", "cn"), find_asian_language("a house", "en")
    ('ja', 'zh', None)
    """
    code = normalize_language_code(language or "").partition("-")[0]
    if code in _UNSPACED_LANGUAGES or code == "ko":
        return code
    counts = count_scripts(characters := Counter(text))
    script, letters = max(counts.items(), key=itemgetter(1), default=("", 0))
    if 2 * letters <= counts.total():
        return None
    kana = sum(count for character, count in characters.items() if _KANA.match(character))
    return "ja" if script == "cjk" and kana > _MIN_KANA * letters else _LANGUAGES_BY_SCRIPT.get(script)


def is_right_to_left(text: str) -> bool:
    """Return True if more characters run from right to left, as Arabic and Hebrew, than from left to right.

    >>> is_right_to_left("بيت صغير </s>"), is_right_to_left("a small house")
    (True, False)
    """
    if text.isascii():
        return False
    counts = Counter(map(unicodedata.bidirectional, text))
    return counts["R"] + counts["AL"] > counts["L"]


def check_script_name(name: str) -> str:
    """Return the name of a script; raise a UserError if it is unknown."""
    if name not in _KNOWN_SCRIPTS:
        raise UserError(f"there is no script {name!r}{format_suggestion(name, _KNOWN_SCRIPTS)}")
    return name
