"""Markdown: paragraphs, headings, list items and table cells are texts; everything else stays as it is written.

The file is read line by line, and only what is certain to be text is translated. Code, front matter, blocks of HTML,
link definitions, formulas, templates and whatever is not understood stay byte for byte.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from regard.documents.draft import Draft
from regard.documents.encoding import plain
from regard.documents.passage import Node, Passage, literal
from regard.documents.spelling import ENTITY, escaped, strict

LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*[\r\n](?:.*?[\r\n])??(?:\1|\.\.\.)[ \t]*(?=[\r\n]|\Z)", re.DOTALL)
QUOTE = re.compile(r" {0,3}>[ \t]?")
ITEM = re.compile(r"(?P<indent>[ \t]*)(?:[-+*]|\d{1,9}[.)])(?:[ \t]+|\Z)(?:\[[ xX]\][ \t]+)?")
OTHER_ITEM = re.compile(r" {0,3}(?:\[\^[^\]\s]+\]:|:)[ \t]+")  # a footnote, or a definition in a list of them
FENCE = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`]*\Z)|~{3,}|\$\$(?!.*\$\$))")
HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+|\Z)")
HEADING_END = re.compile(r"(?:[ \t]+#+)?(?:[ \t]*\{[^{}]*\})?[ \t]*\Z")
RULE = re.compile(r"[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+[ \t]*|-+[ \t]*)\Z")
DEFINITION = re.compile(r" {0,3}\[(?!\^)(?P<label>(?:[^\[\]\\]|\\.)+)\]:")
DELIMITER_ROW = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*\Z")
CELL = re.compile(r"(?:[^|\\]|\\.|\\\Z)+")
# What stays as it is: blocks of HTML, admonitions and formulas, up to an empty line; lines of templates and directives.
OPAQUE_BLOCK = re.compile(r"[ \t]*(?:<[A-Za-z!?/]|!!!|\?\?\?|\\begin\{|\\\[|\$\$)")
OPAQUE_LINE = re.compile(r"[ \t]*(?::::|\*\[[^\]]*\]:|\{[%{<].*[%}>]\}[ \t]*\Z|\{[#:.].*\}[ \t]*\Z)")
INLINE_HTML = re.compile(
    r"[ \t]*<(?:/?(?:a|abbr|b|bdi|bdo|br|cite|code|del|dfn|em|i|img|ins|kbd|mark|q|s|samp|small|span|strong|sub|sup|"
    r"time|u|var|wbr)\b|[A-Za-z][A-Za-z0-9+.-]*:|[^\s<>@]+@)",
    re.IGNORECASE,
)
HTML_ENDS = {"<!--": "-->", "<script": "</script>", "<style": "</style>", "<pre": "</pre>", "<textarea": "</textarea>"}
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
# What would begin a list, a heading or another block at the beginning of a line.
BLOCK_START = re.compile(r"(?:[-+*]|#{1,6}|:)(?=\s|\Z)|>|[=-]+\s*\Z|~~~|```|\||(?P<number>\d{1,9})[.)](?=\s|\Z)")
# A pair of runs has a NUL, which no text has, before and after it. Around nothing it would be other markup: `****`.
EMPTY_EMPHASIS = re.compile(r"\0(?P<run>[*_~]+)(?P=run)\0")
CODE_INDENT = 4
LONGEST = 20_000  # characters of a paragraph; a longer one stays as it is

Spell = Callable[[str], str]


class Paragraph(NamedTuple):
    """A text, on one line or several: what is between its lines is the end of one and the prefix of the next."""

    lines: list[str]
    between: list[str]
    passage: Passage
    spell: Spell

    @property
    def source(self) -> str:
        """The paragraph as it is written."""
        return self.lines[0] + "".join(map("".join, zip(self.between, self.lines[1:], strict=True)))

    def write(self, answer: str) -> str:
        """The paragraph with a translation; an empty one leaves it as it is."""
        if answer in ("", self.passage.text):
            return self.source
        text = self.passage.write(answer, self.spell)
        first, *others = EMPTY_EMPHASIS.sub("", text).replace("\0", "").split("\n")
        made = escape_block_start(first)
        for line, between in zip(others, self.between, strict=False):
            if BLOCK_START.match(line) and not made.endswith(("  ", "\\")):
                made += f" {line}"  # one line: at the beginning of another one it would be a list or the like
            else:
                made += between + escape_block_start(line)
        return made


def escape_block_start(line: str) -> str:
    """Put a backslash before what would begin a list, a heading or another block."""
    found = BLOCK_START.match(line)
    if not found:
        return line
    place = found.end("number") if found["number"] else 0
    return f"{line[:place]}\\{line[place:]}"


def draft(content: bytes) -> Draft:
    """Read a Markdown file."""
    source = plain(content)
    head = FRONT_MATTER.match(source.text)
    start = head.end() if head else 0
    lines = LINE.findall(source.text, start)
    labels = {normalize_label(found["label"]) for found in (DEFINITION.match(line) for line, _ in lines) if found}
    parts = [source.text[:start], *Reader(lines, labels).read()]
    texts = [part.passage.text for part in parts if isinstance(part, Paragraph) and part.passage.text]

    def write(answers: Sequence[str]) -> bytes:
        rest = iter(answers)
        made = []
        for part in parts:
            if isinstance(part, str):
                made.append(part)
            else:
                made.append(part.write(next(rest)) if part.passage.text else part.source)
        return source.bytes("".join(made))

    return Draft(texts, write)


def normalize_label(label: str) -> str:
    """Return a link label in the form in which labels are compared."""
    return " ".join(label.casefold().split())


class Reader:
    """Split lines into paragraphs to translate and parts that stay as they are."""

    def __init__(self, lines: Sequence[tuple[str, str]], labels: Collection[str]) -> None:
        self.lines = lines
        self.labels = labels
        self.texts: list[str] = []  # of the paragraph that is open
        self.between: list[str] = []
        self.end = ""  # of its last line
        self.margin = 0  # columns before the content of the list item that lines may belong to

    def read(self) -> Iterator[str | Paragraph]:
        """All of the file, in order."""
        place, until, table = 0, "", False
        while place < len(self.lines):
            line, end = self.lines[place]
            place += 1
            if until:  # inside a block that ends with a certain text
                closed = line.lstrip("> \t").startswith(until) if until[0] in "`~$" else until in line.lower()
                until = "" if closed else until
                yield line + end
                continue
            prefix, is_item = self.find_prefix(line)
            rest = line[len(prefix) :]
            if is_item or not rest.strip():
                yield from self.end_paragraph()
            following = self.lines[place][0] if place < len(self.lines) else ""
            if table and "|" in rest:
                yield from self.read_row(prefix, rest, end)
                continue
            table = False
            if "|" in rest and not self.texts and self.is_delimiter_row(following):
                table = True
                yield from self.read_row(prefix, rest, end)
                yield "".join(self.lines[place])
                place += 1
            elif fence := FENCE.match(rest):
                yield from self.end_paragraph()
                until = fence["mark"]
                yield line + end
            elif self.is_code(rest) or (not self.texts and DEFINITION.match(rest)) or not rest.strip():
                yield line + end
            elif RULE.match(rest) or OPAQUE_LINE.match(rest):
                yield from self.end_paragraph()
                yield line + end
            elif OPAQUE_BLOCK.match(rest) and not INLINE_HTML.match(rest):
                yield from self.end_paragraph()
                yield line + end
                begun = rest.strip().lower()
                until = next((end for start, end in HTML_ENDS.items() if begun.startswith(start)), "")
                if until:
                    until = "" if until in begun else until
                    continue
                while place < len(self.lines) and self.lines[place][0].strip():
                    yield "".join(self.lines[place])
                    place += 1
            elif heading := HEADING.match(rest):
                yield from self.end_paragraph()
                tail = HEADING_END.search(rest, heading.end())
                stop = tail.start() if tail else len(rest)
                yield prefix + heading[0]
                yield self.make_paragraph([rest[heading.end() : stop]], [])
                yield rest[stop:] + end
            else:
                indent = len(rest) - len(rest.lstrip()) if self.texts else 0
                if self.texts:
                    self.between.append(self.end + prefix + rest[:indent])
                else:
                    yield prefix
                self.texts.append(rest[indent:])
                self.end = end
        yield from self.end_paragraph()

    def find_prefix(self, line: str) -> tuple[str, bool]:
        """Return what is before the content of a line (quotes, list markers), and whether a new block begins there."""
        place, is_item = 0, False
        while True:
            if found := QUOTE.match(line, place):
                place = found.end()
            elif RULE.match(line[place:]):
                break
            elif (found := ITEM.match(line, place)) and count_columns(found["indent"]) < self.margin + CODE_INDENT:
                place, is_item = found.end(), True
                self.margin = count_columns(line[:place])
            elif (found := OTHER_ITEM.match(line, place)) and (line[place:].lstrip()[0] == ":" or not self.texts):
                place, is_item = found.end(), True
                self.margin = CODE_INDENT
            else:
                break
        if not is_item and not self.texts and line[place:].strip() and not line[place].isspace():
            self.margin = 0
        return line[:place], is_item

    def is_code(self, rest: str) -> bool:
        """Return True for a line of indented code."""
        indent = rest[: len(rest) - len(rest.lstrip())]
        return not self.texts and count_columns(indent) >= self.margin + CODE_INDENT

    def is_delimiter_row(self, line: str) -> bool:
        """Return True for the line of dashes under the head of a table."""
        prefix = QUOTE.match(line)
        rest = line[prefix.end() :] if prefix else line
        return "-" in rest and "|" in rest and bool(DELIMITER_ROW.match(rest))

    def read_row(self, prefix: str, rest: str, end: str) -> Iterator[str | Paragraph]:
        """The cells of a row of a table."""
        yield prefix
        place = 0
        for found in CELL.finditer(rest):
            if found[0].count("`") % 2 == 0:  # else code goes on behind the |
                yield rest[place : found.start()]
                yield self.make_paragraph([found[0]], [], in_table=True)
                place = found.end()
        yield rest[place:] + end

    def end_paragraph(self) -> Iterator[str | Paragraph]:
        """The paragraph that is open, which ends."""
        if self.texts:
            yield self.make_paragraph(self.texts, self.between)
            yield self.end
            self.texts, self.between = [], []

    def make_paragraph(self, lines: list[str], between: list[str], in_table: bool = False) -> Paragraph:
        """A paragraph of these lines."""
        bare: set[str] = set()
        text = "\n".join(lines)
        passage = Passage(parse_inline(text, self.labels, bare) if len(text) <= LONGEST else ())
        kept = frozenset(ENTITY.findall(passage.text))
        return Paragraph(lines, between, passage, lambda markup: escape_markup(markup, bare, kept, in_table))


def count_columns(text: str) -> int:
    """The width of a text, in which a tab counts to the next multiple of four."""
    return len(text.expandtabs(CODE_INDENT))


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
