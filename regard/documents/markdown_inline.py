"""Inline markup of Markdown: emphasis, links, code, HTML tags and escapes."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from regard.documents.passage import Node, literal
from regard.documents.spelling import ENTITY, escaped, strict

TITLE = r"""(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?"""
TOKEN = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))"
    r"|\\(?P<escape>[!-/:-@\[-`{-~])"
    r"|(?P<hard>(?: {2,}|\\)\n)"
    r"|(?P<opaque><!--.*?-->|<[A-Za-z][A-Za-z0-9+.-]*:[^\s<>]*>|<[^\s<>@]+@[^\s<>]+>|\[\^[^\]\s]+\]|\{%.*?%\}|\{\{.*?\}\}"
    r"|\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)|(?<!\w):[a-z0-9_+-]*[a-z][a-z0-9_+-]*:(?!\w))"
    r"|<(?P<close>/?)(?P<tag>[A-Za-z][\w-]*)(?:\s+[\w:.@-]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+))?)*\s*/?>"
    r"|(?P<open>!?\[)"
    rf"|(?P<end>\]\(\s*(?:<[^<>\n]*>|(?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*){TITLE}\s*\)|\]\[[^\[\]]*\]|\])"
    r"|(?P<run>\*+|_+|~~)",
    re.DOTALL,
)
VOID = frozenset(("br", "hr", "img", "input", "wbr"))
SEPARATING = frozenset(("br", "hr", "img"))
SPECIAL = re.compile(r"[\\`*\[\]<]|(?<![^\W_])_|_(?![^\W_])|~~|&(?=#?\w+;)")
TAG_START = re.compile(r"<[A-Za-z/!?]")
# A pair of runs has a NUL, which no text has, before and after it. Around nothing it would be other markup: `****`.
EMPTY_EMPHASIS = re.compile(r"\0(?P<run>[*_~]+)(?P=run)\0")


def parse_inline(text: str, labels: Collection[str], bare: set[str]) -> Iterator[Node]:
    """Words, and the markup among them; special characters that are text without a backslash are added to `bare`."""
    found = list(TOKEN.finditer(text))
    closing = find_links(text, found, labels)
    pairs = find_emphasis(text, found, closing)
    openings = {start for start, _ in closing.values()}
    quoted_characters: set[str] = set()
    place = 0
    for number, token in enumerate(found):
        words = text[place : token.start()]
        bare.update(SPECIAL.findall(words))
        yield Node(strict(words))
        place = token.end()
        if token["code"] or token["opaque"]:
            yield Node(opening=[literal(token[0])])
        elif token["hard"]:
            yield Node(opening=[literal(token[0])], separates=True)
        elif token["escape"]:
            quoted_characters.add(token["escape"])
            yield Node(escaped(token["escape"]))
        elif token["tag"]:
            name = token["tag"].lower()
            half = "" if name in VOID or token[0].endswith("/>") else name
            yield Node(opening=[literal(token[0])], half=half, opens=not token["close"], separates=name in SEPARATING)
        elif number in openings:
            yield Node(opening=[literal(token[0])], half=f"[{number}", opens=True)
        elif number in closing:
            start, written = closing[number]
            yield Node(opening=[literal(written)], half=f"[{start}")
        elif number in pairs:
            opens = pairs[number] == number
            run = f"\0{token[0]}" if opens else f"{token[0]}\0"
            yield Node(opening=[literal(run)], half=f"*{pairs[number]}", opens=opens)
        else:
            bare.update(token[0], [token[0]])
            yield Node(strict(token[0]))
    bare.update(SPECIAL.findall(text[place:]))
    bare -= quoted_characters
    yield Node(strict(text[place:]))


def normalize_label(label: str) -> str:
    """Return a link label in the form in which labels are compared."""
    return " ".join(label.casefold().split())


def find_links(text: str, found: Sequence[re.Match[str]], labels: Collection[str]) -> dict[int, tuple[int, str]]:
    """Find the ends of links and images: the number of the bracket that opens each, and how its end is written.

    `[text]` alone refers to a definition by its text, which is translated: it becomes `[text][definition]`.
    """
    made: dict[int, tuple[int, str]] = {}
    opened: list[int] = []
    for number, token in enumerate(found):
        if token["open"]:
            opened.append(number)
        elif token["end"] and opened:
            start = opened.pop()
            inside = text[found[start].end() : token.start()]
            if token[0].startswith("]("):
                made[number] = start, token[0]
            else:
                named = token[0][2:-1] or inside
                if normalize_label(named) in labels:
                    made[number] = start, f"][{named}]"
    return made


def find_emphasis(text: str, found: Sequence[re.Match[str]], closing: dict[int, tuple[int, str]]) -> dict[int, int]:
    """Find pairs of equal runs of `*`, `_` or `~~`, both in one link or in none: the number of the opening one."""
    made: dict[int, int] = {}
    starts = {start for start, _ in closing.values()}
    stack: list[list[int]] = [[]]  # the runs that are open, in each link that is
    counts: list[Counter[str]] = [Counter()]  # of these
    for number, token in enumerate(found):
        if number in starts:
            stack.append([])
            counts.append(Counter())
        elif number in closing:
            stack.pop()
            counts.pop()
        elif run := token["run"]:
            before, after = text[max(token.start() - 1, 0) : token.start()], text[token.end() : token.end() + 1]
            opens, closes = not (after.isspace() or not after), not (before.isspace() or not before)
            if run[0] == "_":
                opens, closes = opens and not before.isalnum(), closes and not after.isalnum()
            if closes and counts[-1][run]:
                while True:
                    other = stack[-1].pop()
                    counts[-1][found[other][0]] -= 1
                    if found[other][0] == run:
                        break
                made[other] = made[number] = other
            elif opens:
                stack[-1].append(number)
                counts[-1][run] += 1
    return made


def escape_markup(markup: str, bare: Collection[str], kept: Collection[str], in_table: bool) -> str:
    """Text as Markdown has it: special characters have a backslash, unless the source has them without one."""
    out, text, place = "", "", 0
    for found in ENTITY.finditer(markup):
        text += markup[place : found.start()]
        place = found.end()
        if found[0] in kept and found[0] not in ("&amp;", "&lt;", "&gt;"):
            out += escape_text(text, bare, in_table) + found[0]
            text = ""
        else:
            text += html.unescape(found[0])
    return out + escape_text(text + markup[place:], bare, in_table)


def escape_text(text: str, bare: Collection[str], in_table: bool) -> str:
    """Put a backslash before special characters."""
    made = SPECIAL.sub(
        lambda found: found[0] if found[0] in bare and not TAG_START.match(text, found.start()) else f"\\{found[0]}",
        text,
    )
    return re.sub(r"(?<!\\)\|", r"\\|", made) if in_table else made
