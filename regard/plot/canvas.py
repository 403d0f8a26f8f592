"""An empty picture. matplotlib is imported when the first is made: most commands make none, and it takes its time."""

from __future__ import annotations

import unicodedata
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from regard.console import say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")


def canvas(figsize: tuple[float, float], dpi: int, layout: Literal["constrained"] | None = None) -> Figure:
    """Width and height in inches."""
    return _picture_class()(figsize=figsize, dpi=dpi, layout=layout)


@cache
def _picture_class() -> type[Figure]:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    class Picture(Figure):
        """A figure whose text falls back to other installed fonts; characters that none has are reported once."""

        def draw(self, renderer: Any) -> None:
            for axes in self.axes:
                axes.get_xticklabels(), axes.get_yticklabels()  # which gives them their text
            for text in self.findobj(Text):
                families = dict.fromkeys([*text.get_fontfamily(), *map(_fallback_family, text.get_text())])
                text.set_fontfamily([family for family in families if family is not None])
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"Glyph \d+ ")
                super().draw(renderer)

    return Picture


@cache
def _fallback_family(character: str) -> str | None:
    """Return an installed font family for a character that the default font lacks; None if it has it or none does."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    if character.isascii() or _has_character(findfont(FontProperties()), character):
        return None
    for entry in sorted(fontManager.ttflist, key=lambda entry: (not entry.name.startswith("Noto Sans"), entry.name)):
        if not entry.name.lstrip(".").startswith(("Last Resort", "LastResort")) and _has_character(
            entry.fname, character
        ):
            return entry.name
    script = unicodedata.name(character, "").split(" ")[0]
    _report_missing("Noto Sans CJK" if script.startswith(CJK) else f"Noto Sans {script.title()}".strip(), character)
    return None


def _has_character(path: str, character: str) -> bool:
    from matplotlib.font_manager import get_font

    try:
        return bool(get_font(path).get_char_index(ord(character)))
    except (OSError, RuntimeError):  # a font of coloured pictures, or a damaged one
        return False


_reported: list[str] = []  # at most one: a log is not to be filled with characters


def _report_missing(font: str, character: str) -> None:
    if not _reported:
        _reported.append(character)
        say(f"no installed font has {character} (U+{ord(character):04X}), which pictures show as a box: install {font}")
