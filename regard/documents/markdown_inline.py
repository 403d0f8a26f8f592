"""Inline markup of Markdown: emphasis, links, code, HTML tags and escapes."""

from __future__ import annotations

import html
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from html.entities import html5

from regard.documents.escaping import ENTITY, escape_text
from regard.documents.tagged_text import InlineNode, make_literal


def _build_span_pattern(opening: str, closing: str) -> str:
    """Build a pattern for everything from an opening to the next closing text, with at most three more openings in it.

    Without that limit, a text full of openings that nothing closes would be searched to its end for each of them.
    """
    start, end = re.escape(opening), re.escape(closing)
    stretch = rf"(?:(?!{start}).)"
    return rf"{start}(?:{stretch}*+{start}){{0,3}}?{stretch}*?{end}"


MATH = _build_span_pattern(r"\(", r"\)")
TITLE = r"""(?:\s++(?:"[^"]*"|'[^']*'|\([^()]*\)))?"""
INLINE_TOKEN = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`++).*?(?<!`)(?P=ticks)(?!`))"
    rf"|(?P<opaque>{_build_span_pattern('<!--', '-->')}|{_build_span_pattern('{%', '%}')}"
    rf"|{_build_span_pattern('{{', '}}')}|{MATH}"
    r"|<[A-Za-z][A-Za-z0-9+.-]*:[^\s<>]*>|<[^\s<>@]+@[^\s<>]+>|\[\^[^\[\]\s]+\]"
    r"|\$\$[^$]+\$\$|\$(?=[^\s$])[^$\n]*?(?<=\S)\$(?!\d)|(?<!\w):(?=[0-9_+-]*+[a-z])[a-z0-9_+-]*+:(?!\w)"
    # Pandoc, R Markdown and Quarto: attributes, citations, cross-references, LaTeX commands.
    r"|\{[#.:][^{}\n]*\}|(?<=[\])`])\{[^{}\n]*\}|(?<![^\s\[(;,-])@\w(?:[\w:./-]*\w)?|\\@ref\([^()\s]*\)|\(ref:[^()\s]*\)"
    r"|\\[A-Za-z]++(?:\[[^\[\]\n]*\]|\{[^{}\n]*\})+)"
    r"|\\(?P<escape>[!-/:-@\[-`{-~])"
    r"|(?P<hard>(?:(?<! ) {2,}+|\\)\n)"
    r"|<(?P<close>/?)(?P<tag>[A-Za-z][\w-]*)(?:\s+[\w:.@-]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+))?)*\s*/?>"
    r"|(?P<open>!?\[)"
    rf"|(?P<end>\]\(\s*+(?:<[^<>\n]*>|(?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*){TITLE}\s*+\)|\]\[[^\[\]]*\]|\])"
    r"|(?P<run>\*+|_+|~~)",
    re.DOTALL,
)
MAX_LABEL_LENGTH = 999  # characters of the name of a link definition, as in CommonMark
VOID_TAGS = frozenset(("br", "hr", "img", "input", "wbr"))
SEPARATOR_TAGS = frozenset(("br", "hr", "img"))
SPECIAL_CHARACTER = re.compile(r"[\\`*\[\]]|(?<![^\W_])_|_(?![^\W_])|~~")
TAG_START = re.compile(r"<(?=[A-Za-z/!?]|[^\s<>@]+@)")
# A pair of runs has a NUL, which no text has, before and after it. Around nothing it would be other markup: `****`.
EMPTY_EMPHASIS = re.compile(r"\0(?P<run>[*_~]{1,100})(?P=run)\0")


class EscapeStyle:
    """How a paragraph writes characters that could be markup: bare, with a backslash, or as entities."""

    def __init__(self, text: str, in_table: bool) -> None:
        self.in_table = in_table
        self.unescaped: set[str] = set()  # special characters that are text without a backslash
        self.backslashed: set[str] = set()  # those with one
        self.entities = {
            found: _decode_entity(found) for found in ENTITY.findall(text) if _decode_entity(found) != found
        }
        # How each &, < and >, and each sign that is an entity somewhere, is written, in the order of the text.
        signs = {"&", "<", ">", *self.entities.values()} - set(string.ascii_letters + string.digits + " \t\r\n")
        self.source_spellings: dict[str, list[str]] = {sign: [] for sign in signs}
        single = "".join(re.escape(sign) for sign in sorted(signs) if len(sign) == 1)
        longer = [re.escape(sign) for sign in sorted(signs) if len(sign) > 1]
        self.sign_pattern = re.compile("|".join([ENTITY.pattern, f"[{single}]", *longer]))

    def convert_to_markup(self, text: str) -> str:
        """Turn text into markup, in which & and < are entities; what is no entity in Markdown is none there."""
        self.unescaped.update(SPECIAL_CHARACTER.findall(text))
        out, place = [], 0
        for found in self.sign_pattern.finditer(text):
            character = _decode_entity(found[0])
            if character in self.source_spellings:
                self.source_spellings[character].append(found[0])
            elif character == found[0]:  # it only looks like an entity
                self.source_spellings["&"].append("&")
            is_text = character == found[0]
            out += [escape_text(text[place : found.start()]), escape_text(found[0]) if is_text else found[0]]
            place = found.end()
        return "".join(out) + escape_text(text[place:])

    def convert_escape_to_markup(self, character: str) -> str:
        """Turn a character that has a backslash into markup."""
        self.backslashed.add(character)
        if character in self.source_spellings:
            self.source_spellings[character].append(f"\\{character}")
        return escape_text(character)

    def make_markdown_escaper(self) -> Callable[[str], str]:
        """Build a function that writes markup as Markdown, the nth & as the nth one of the source, and so on."""
        forms = {character: iter(found) for character, found in self.source_spellings.items()}

        def write_markdown(markup: str) -> str:
            out, text, place = "", "", 0
            for found in self.sign_pattern.finditer(markup):
                text += markup[place : found.start()]
                place = found.end()
                character = _decode_entity(found[0])
                is_kept = found[0] in self.entities and character not in ("&", "<", ">")
                form = next(forms.get(character, iter(())), found[0] if is_kept else character)
                if form == character:
                    text += character
                else:
                    out += self.escape_special_characters(text) + form
                    text = ""
            return out + self.escape_special_characters(text + markup[place:])

        return write_markdown

    def escape_special_characters(self, text: str) -> str:
        """Put a backslash before what would be markup, unless the source has it in its text without one."""
        bare = self.unescaped - self.backslashed
        made = SPECIAL_CHARACTER.sub(lambda found: found[0] if found[0] in bare else f"\\{found[0]}", text)
        made = TAG_START.sub(r"\\<", made)
        made = ENTITY.sub(lambda found: found[0] if _decode_entity(found[0]) == found[0] else f"\\{found[0]}", made)
        return re.sub(r"(?<!\\)\|", r"\\|", made) if self.in_table else made


def _decode_entity(entity: str) -> str:
    """Return the character of an entity; anything else, and what only looks like an entity, as it is."""
    return (html.unescape(entity) if entity[1:2] == "#" or entity[1:] in html5 else "") or entity


def parse_inline(text: str, link_labels: Collection[str], escape_style: EscapeStyle) -> Iterator[InlineNode]:
    """Words, and the markup among them; how special characters are written is added to `notation`."""
    found = list(INLINE_TOKEN.finditer(text))
    closing = _find_links(text, found, link_labels)
    pairs = _find_emphasis(text, found, closing)
    openings = {start for start, _ in closing.values()}
    place = 0
    for number, token in enumerate(found):
        yield InlineNode(escape_style.convert_to_markup(text[place : token.start()]))
        place = token.end()
        if token["code"] or token["opaque"]:
            yield InlineNode(opening=[make_literal(token[0])])
        elif token["hard"]:
            yield InlineNode(opening=[make_literal(token[0])], separates_words=True)
        elif token["escape"]:
            yield InlineNode(escape_style.convert_escape_to_markup(token["escape"]))
        elif token["tag"]:
            name = token["tag"].lower()
            half = "" if name in VOID_TAGS or token[0].endswith("/>") else name
            yield InlineNode(
                opening=[make_literal(token[0])],
                pair_key=half,
                is_opening=not token["close"],
                separates_words=name in SEPARATOR_TAGS,
            )
        elif number in openings:
            yield InlineNode(opening=[make_literal(token[0])], pair_key=f"[{number}", is_opening=True)
        elif number in closing:
            start, written = closing[number]
            yield InlineNode(opening=[make_literal(written)], pair_key=f"[{start}")
        elif number in pairs:
            opens = pairs[number] == number
            run = f"\0{token[0]}" if opens else f"{token[0]}\0"
            yield InlineNode(opening=[make_literal(run)], pair_key=f"*{pairs[number]}", is_opening=opens)
        else:
            escape_style.unescaped.update(token[0], [token[0]])
            yield InlineNode(escape_style.convert_to_markup(token[0]))
    yield InlineNode(escape_style.convert_to_markup(text[place:]))


def normalize_link_label(label: str) -> str:
    """Return a link label in the form in which labels are compared."""
    return " ".join(label.casefold().split())


def _find_links(text: str, tokens: Sequence[re.Match[str]], link_labels: Collection[str]) -> dict[int, tuple[int, str]]:
    """Find the ends of links and images: the number of the bracket that opens each, and how its end is written.

    `[text]` alone refers to a definition by its text, which is translated: it becomes `[text][definition]`.
    """
    made: dict[int, tuple[int, str]] = {}
    opened: list[int] = []
    for number, token in enumerate(tokens):
        if token["open"]:
            opened.append(number)
        elif token["end"] and opened:
            start = opened.pop()
            inside = text[tokens[start].end() : token.start()]
            if token[0].startswith("]("):
                made[number] = start, token[0]
            else:
                named = token[0][2:-1] or inside
                if len(named) <= MAX_LABEL_LENGTH and normalize_link_label(named) in link_labels:
                    made[number] = start, f"][{named}]"
    return made


def _find_emphasis(text: str, tokens: Sequence[re.Match[str]], link_ends: dict[int, tuple[int, str]]) -> dict[int, int]:
    """Find pairs of equal runs of `*`, `_` or `~~`, both in one link or in none: the number of the opening one."""
    made: dict[int, int] = {}
    starts = {start for start, _ in link_ends.values()}
    stack: list[list[int]] = [[]]  # the runs that are open, in each link that is
    counts: list[Counter[str]] = [Counter()]  # of these
    for number, token in enumerate(tokens):
        if number in starts:
            stack.append([])
            counts.append(Counter())
        elif number in link_ends:
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
                    counts[-1][tokens[other][0]] -= 1
                    if tokens[other][0] == run:
                        break
                made[other] = made[number] = other
            elif opens:
                stack[-1].append(number)
                counts[-1][run] += 1
    return made
