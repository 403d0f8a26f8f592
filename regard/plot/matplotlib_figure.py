"""Matplotlib figures with font fallback for all scripts. Importing matplotlib is slow, so it happens on first use."""

from __future__ import annotations

import unicodedata
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from regard.console import log_message

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry

CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")
SCRIPTS = (  # scripts with a "Noto Sans" font of that name; also the first word of their Unicode character names
    *("ADLAM", "ARABIC", "ARMENIAN", "BALINESE", "BENGALI", "CHEROKEE", "COPTIC", "DEVANAGARI", "ETHIOPIC", "GEORGIAN"),
    *("GOTHIC", "GUJARATI", "GURMUKHI", "HEBREW", "JAVANESE", "KANNADA", "KHMER", "LAO", "MALAYALAM", "MONGOLIAN"),
    *("MYANMAR", "NKO", "ORIYA", "RUNIC", "SINHALA", "SUNDANESE", "SYRIAC", "TAMIL", "TELUGU", "THAANA", "THAI"),
    *("TIFINAGH", "VAI"),
)


def make_figure(
    figsize: tuple[float, float], dpi: int, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Return an empty figure; `figsize` is width and height in inches."""
    return _make_figure_class()(figsize=figsize, dpi=dpi, layout=layout)


@cache
def _make_figure_class() -> type[Figure]:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    class Picture(Figure):
        """A figure whose text has no formulas and falls back to other fonts; a character without one is reported."""

        def draw(self, renderer: Any) -> None:
            for axes in self.axes:
                axes.get_xticklabels(), axes.get_yticklabels()  # called for the side effect: sets the label texts
            for text in self.findobj(Text):
                families = dict.fromkeys([*text.get_fontfamily(), *map(_find_fallback_family, text.get_text())])
                text.set_fontfamily([family for family in families if family is not None])
                text.set_parse_math(False)  # a dollar sign is a dollar sign
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"Glyph \d+ ")
                super().draw(renderer)

    return Picture


@cache
def _find_fallback_family(character: str) -> str | None:
    """Return an installed font family for a character that the default font lacks; None if it has it or none does."""
    from matplotlib.font_manager import FontProperties, findfont

    if character.isascii() or _has_character(findfont(FontProperties()), character):
        return None
    family = next((entry.name for entry in _list_fallback_fonts() if _has_character(entry.fname, character)), None)
    if family is None:
        _report_missing_character(character)
    return family


def _list_fallback_fonts() -> list[FontEntry]:
    from matplotlib.font_manager import fontManager

    fonts = [
        font for font in fontManager.ttflist if not font.name.lstrip(".").startswith(("Last Resort", "LastResort"))
    ]
    return sorted(fonts, key=lambda font: (not font.name.startswith("Noto Sans"), font.name))


def _has_character(path: str, character: str) -> bool:
    return ord(character) in _read_code_points(path)


@cache
def _read_code_points(path: str) -> frozenset[int]:
    """Return the characters of a font file; opening the files anew for each character would be slow."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(path).get_charmap())
    except (OSError, RuntimeError):  # bitmap emoji font, or a damaged file
        return frozenset()


_reported: list[str] = []  # at most one character is reported, not every missing one


def _report_missing_character(character: str) -> None:
    if not _reported:
        _reported.append(character)
        script = unicodedata.name(character, "").split(" ")[0]
        font = "CJK" if script.startswith(CJK) else script.title() if script in SCRIPTS else None
        advice = "" if font is None else f": install Noto Sans {font}"
        log_message(f"no installed font has {character} (U+{ord(character):04X}), which pictures show as a box{advice}")
