"""Inline markup of Markdown: emphasis, links, code, HTML tags and escapes."""

from __future__ import annotations

import html
import re
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from html.entities import html5

from regard.documents.escaping import ENTITY, escape_text
from regard.documents.tagged_text import InlineNode, make_tag_node
from regard.tag_pairs import VOID_ELEMENTS, TagHalf, match_tag_pairs


def _build_span_pattern(opening: str, closing: str) -> str:
    """Build a pattern from an opening to the next closing text, with at most three more openings in between.

    Without that limit, a text full of openings that are never closed would be searched to its end for each of them.
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
MAX_LABEL_LENGTH = 999  # characters of a link label, as in CommonMark
SEPARATOR_TAGS = frozenset(("br", "hr", "img"))
SPECIAL_CHARACTER = re.compile(r"[\\`*\[\]]|(?<![^\W_])_|_(?![^\W_])|~~")
TAG_START = re.compile(r"<(?=[A-Za-z/!?]|[^\s<>@]+@)")
# A NUL, which no text has, is before and after each pair of runs. Empty emphasis would be other markup: `****`.
EMPTY_EMPHASIS = re.compile(r"\0(?P<run>[*_~]{1,100})(?P=run)\0")


class EscapeStyle:
    """Spelling of special characters in a paragraph: bare, with a backslash, or as entities."""

    def __init__(self, text: str, in_table: bool) -> None:
        self.in_table = in_table
        self.unescaped: set[str] = set()  # special characters that occur as text without a backslash
        self.backslashed: set[str] = set()  # with a backslash
        self.entities = {entity for entity in ENTITY.findall(text) if _decode_entity(entity) != entity}
        # Spellings of each &, < and >, and of each character that is an entity somewhere, in the order of the text.
        signs = {"&", "<", ">", *map(_decode_entity, self.entities)}
        signs -= set(string.ascii_letters + string.digits + " \t\r\n")
        self.source_spellings: dict[str, list[str]] = {sign: [] for sign in signs}
        alternatives = map(re.escape, sorted(signs, key=lambda sign: (len(sign), sign)))
        self.sign_splitter = re.compile(f"({'|'.join([ENTITY.pattern, *alternatives])})")

    def convert_to_markup(self, text: str) -> str:
        """Convert text to markup, with & and < as entities; only Markdown's entities stay entities."""
        self.unescaped.update(SPECIAL_CHARACTER.findall(text))
        parts = self.sign_splitter.split(text)  # every second part is a special character
        for sign in parts[1::2]:
            character = _decode_entity(sign)
            if character in self.source_spellings:
                self.source_spellings[character].append(sign)
            elif character == sign:  # it only looks like an entity
                self.source_spellings["&"].append("&")
        return "".join(part if _decode_entity(part) != part else escape_text(part) for part in parts)

    def convert_escape_to_markup(self, character: str) -> str:
        """Convert a character with a backslash to markup."""
        self.backslashed.add(character)
        self.source_spellings.get(character, []).append(f"\\{character}")
        return escape_text(character)

    def make_markdown_escaper(self) -> Callable[[str], str]:
        """Build a function that writes markup as Markdown, the nth & like the nth one of the source, and so on."""
        spellings = {character: iter(match) for character, match in self.source_spellings.items()}

        def write_markdown(markup: str) -> str:
            out, (text, *parts) = "", self.sign_splitter.split(markup)  # text, special character, text, …
            for sign, following in zip(parts[::2], parts[1::2], strict=True):
                character = _decode_entity(sign)
                is_kept = sign in self.entities and character not in ("&", "<", ">")
                spelling = next(spellings.get(character, iter(())), sign if is_kept else character)
                if spelling == character:
                    text += character + following
                else:
                    out, text = out + self.escape_special_characters(text) + spelling, following
            return out + self.escape_special_characters(text)

        return write_markdown

    def escape_special_characters(self, text: str) -> str:
        """Put a backslash before special characters, unless the source has them in its text without one."""
        plain = self.unescaped - self.backslashed
        escaped = SPECIAL_CHARACTER.sub(lambda match: match[0] if match[0] in plain else f"\\{match[0]}", text)
        escaped = TAG_START.sub(r"\\<", escaped)
        escaped = ENTITY.sub(
            lambda match: match[0] if _decode_entity(match[0]) == match[0] else f"\\{match[0]}", escaped
        )
        return re.sub(r"(?<!\\)\|", r"\\|", escaped) if self.in_table else escaped


def _decode_entity(entity: str) -> str:
    """Return the character of an entity; anything else unchanged."""
    return (html.unescape(entity) if entity[1:2] == "#" or entity[1:] in html5 else "") or entity


def parse_inline(text: str, link_labels: Collection[str], escape_style: EscapeStyle) -> Iterator[InlineNode]:
    """Yield the text and inline markup of a paragraph; record the spelling of special characters in `escape_style`."""
    tokens = list(INLINE_TOKEN.finditer(text))
    closing = _find_links(text, tokens, link_labels)
    pairs = _find_emphasis(text, tokens, closing)
    openings = {start for start, _ in closing.values()}
    position = 0
    for number, token in enumerate(tokens):
        yield InlineNode(escape_style.convert_to_markup(text[position : token.start()]))
        position = token.end()
        if token["code"] or token["opaque"] or token["hard"]:
            yield make_tag_node(token[0], separates_words=bool(token["hard"]))
        elif token["escape"]:
            yield InlineNode(escape_style.convert_escape_to_markup(token["escape"]))
        elif token["tag"]:
            name = token["tag"].lower()
            pair_key = "" if name in VOID_ELEMENTS or token[0].endswith("/>") else name
            yield make_tag_node(token[0], pair_key, not token["close"], name in SEPARATOR_TAGS)
        elif number in openings:
            yield make_tag_node(token[0], f"[{number}", is_opening=True)
        elif number in closing:
            start, end_text = closing[number]
            yield make_tag_node(end_text, f"[{start}")
        elif number in pairs:
            opens = pairs[number] > number
            run = f"\0{token[0]}" if opens else f"{token[0]}\0"
            yield make_tag_node(run, f"*{min(number, pairs[number])}", is_opening=opens)
        else:
            escape_style.unescaped.update(token[0], [token[0]])
            yield InlineNode(escape_style.convert_to_markup(token[0]))
    yield InlineNode(escape_style.convert_to_markup(text[position:]))


def normalize_link_label(label: str) -> str:
    """Normalise a link label for comparison."""
    return " ".join(label.casefold().split())


def _find_links(text: str, tokens: Sequence[re.Match[str]], link_labels: Collection[str]) -> dict[int, tuple[int, str]]:
    """Find the ends of links and images: the index of the opening bracket, and the text of the end.

    `[text]` alone refers to a definition by its text, which is translated: it becomes `[text][definition]`.
    """
    links: dict[int, tuple[int, str]] = {}
    opened: list[int] = []
    for number, token in enumerate(tokens):
        if token["open"]:
            opened.append(number)
        elif token["end"] and opened:
            start = opened.pop()
            inside = text[tokens[start].end() : token.start()]
            if token[0].startswith("]("):
                links[number] = start, token[0]
            else:
                label = token[0][2:-1] or inside
                if len(label) <= MAX_LABEL_LENGTH and normalize_link_label(label) in link_labels:
                    links[number] = start, f"][{label}]"
    return links


def _find_emphasis(text: str, tokens: Sequence[re.Match[str]], link_ends: dict[int, tuple[int, str]]) -> dict[int, int]:
    """Find pairs of equal runs of `*`, `_` or `~~`, both in the same link or in none: the index of the other run."""
    starts = {start for start, _ in link_ends.values()}
    links = [-1]  # the open ones
    tags = []
    for index, token in enumerate(tokens):
        if index in starts:
            links.append(index)
        elif index in link_ends:
            links.pop()
        run = token["run"] or ""
        before, after = text[max(token.start() - 1, 0) : token.start()], text[token.end() : token.end() + 1]
        opens, closes = not (after.isspace() or not after), not (before.isspace() or not before)
        if run[:1] == "_":
            opens, closes = opens and not before.isalnum(), closes and not after.isalnum()
        tags.append(TagHalf(run and f"{links[-1]} {run}", opens, closes))
    return match_tag_pairs(tags)
