"""Which languages of a file are source and target."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from regard.data.files import in_a_line
from regard.data.languages import canonical_code, find_language, matches
from regard.errors import UserError

CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
CHOICES = ("which is {}", "--{}", "data.{}=")  # a side in messages: in a sentence, as an option, as a recipe key
REGION = re.compile(r"[-_]([A-Za-z]{2}|[0-9]{3})$")


class LanguageError(UserError):
    """A file does not hold the languages that were requested."""


class Wish(NamedTuple):
    """The languages that were asked for, and those that the file's name speaks of.

    Without `names` the languages asked for are there to choose among those of the file; with it they are also the names
    of the two sides of a file that names none.
    """

    source: str | None = None
    target: str | None = None
    named: tuple[str, str] | None = None
    names: bool = True

    def meet_no_names(self, where: str) -> None:
        """Refuses a choice where there is none: the file does not say which languages it holds."""
        if not self.names and (self.source or self.target):
            raise UserError(
                f"{where} names no languages, so that --source and --target have nothing to choose from: leave them out"
            )


class Sides(NamedTuple):
    """The two languages to read. Not `sure`: they are all that was seen so far, and a third must not go unheard."""

    source: str
    target: str
    sure: bool


def is_code(name: str) -> bool:
    """Whether a name may be that of a language: en, deu, pt-BR, zh_Hans."""
    return CODE.fullmatch(name) is not None


def codes_among(names: Iterable[str], wish: Wish) -> list[str]:
    """The names of columns that may be languages. `id` counts the rows, unless Indonesian is meant."""
    codes = [name for name in dict.fromkeys(names) if is_code(name)]
    meant = "id" in (find_language(code) for code in (wish.source, wish.target, *(wish.named or ())) if code)
    return codes if meant or len(codes) < 3 else [code for code in codes if code != "id"]


def distinct(codes: Iterable[str]) -> list[str]:
    """The languages in their order, each once, by its widest code: `en` where there are both `en-US` and `en`."""
    found = list(dict.fromkeys(codes))
    return list(dict.fromkeys(min((other for other in found if matches(code, other)), key=len) for code in found))


def merged(codes: Sequence[str]) -> list[str]:
    """More than two languages as two where they differ by region alone.

    >>> merged(["en-GB", "en-US", "de-AT"]), merged(["en", "pt-BR"]), merged(["en", "zh-Hans", "zh-Hant"])
    (['en', 'de'], ['en', 'pt-BR'], ['en', 'zh-Hans', 'zh-Hant'])
    """
    wide = list(dict.fromkeys(REGION.sub("", canonical_code(code)) for code in codes))
    return wide if len(codes) > 2 and len(wide) == 2 else list(codes)


def choose(found: Sequence[str], wish: Wish, where: str, first: str | None = None) -> Sides:
    """Source and target among the languages of a file that may hold several; `first` is its own word for the source."""
    asked = [code for code in (wish.source, wish.target) if code]
    if not all(holds(found, code) for code in asked):
        raise not_there(asked, found, where)
    if wish.source and wish.target:
        return Sides(wish.source, wish.target, sure=True)
    if not asked and wish.named and all(holds(found, code) for code in wish.named):
        return Sides(*wish.named, sure=True)
    kinds = merged(distinct(found))
    if len(kinds) < 2:
        raise UserError(f"{where} holds one language only ({listed(found)}); a pair has two")
    if asked:
        kinds = [code for code in kinds if not matches(code, asked[0]) and not matches(asked[0], code)]
    if len(kinds) != 2 - len(asked):
        sides = [side for side, code in (("source", wish.source), ("target", wish.target)) if not code]
        which, options, keys = (" and ".join(form.format(side) for side in sides) for form in CHOICES)
        raise UserError(
            f"{where} holds {listed(found)}; say {which} by code ({options}, in training {keys}; en also means en-US)"
        )
    if asked:
        return Sides(wish.source or kinds[0], wish.target or kinds[0], sure=False)
    if first and (matches(kinds[1], first) or matches(first, kinds[1])):
        kinds.reverse()
    return Sides(kinds[0], kinds[1], sure=False)


def reverses(codes: tuple[str, str], wish: Wish, where: str) -> bool:
    """Whether a file of two sides is to be read the other way round; `codes` are its languages, "" where unknown."""
    if not any(codes):
        wish.meet_no_names(where)
    if fits(codes, (wish.source, wish.target)):
        other_way = wish.named is not None and not fits(codes, wish.named) and fits(codes[::-1], wish.named)
        return other_way and not (wish.source or wish.target)
    if fits(codes[::-1], (wish.source, wish.target)):
        return True
    raise not_there([code for code in (wish.source, wish.target) if code], codes, where)


def fits(codes: Sequence[str], wanted: Sequence[str | None]) -> bool:
    """Whether two languages are the two that are wanted, as far as both are known."""
    return all(not want or not code or matches(code, want) for code, want in zip(codes, wanted, strict=True))


def holds(found: Iterable[str], wanted: str) -> bool:
    """Whether a language is among others."""
    return any(matches(code, wanted) for code in found)


def nearest_code(found: Collection[str], wanted: str) -> str | None:
    """The one among a file's languages that is meant: by the very code, else the first that is narrower."""
    if wanted in found:
        return wanted
    codes = [code for code in found if matches(code, wanted)]
    return next((code for code in codes if matches(wanted, code)), codes[0] if codes else None)


def not_there(asked: Sequence[str], found: Sequence[str], where: str) -> LanguageError:
    """What is said where a file has other languages than those asked for."""
    return LanguageError(f"{where} holds {listed(found)}, not {' and '.join(asked)}")


def listed(found: Sequence[str]) -> str:
    """Languages for a message."""
    return ", ".join(in_a_line(code) for code in dict.fromkeys(found) if code) or "no named language"
