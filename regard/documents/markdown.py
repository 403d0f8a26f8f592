"""Markdown: paragraphs, headings, list items and table cells are texts; everything else stays as it is written.

The file is read line by line, and only what is certain to be text is translated. Code, front matter, blocks of HTML,
link definitions, formulas, templates and whatever is not understood stay byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from regard.documents.draft import Draft
from regard.documents.encoding import plain
from regard.documents.markdown_inline import EMPTY_EMPHASIS, Notation, normalize_label, parse_inline
from regard.documents.passage import Passage

LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*[\r\n](?:.*?[\r\n])??(?:\1|\.\.\.)[ \t]*(?=[\r\n]|\Z)", re.DOTALL)
QUOTE = re.compile(r" {0,3}>[ \t]?")
ITEM = re.compile(r"(?P<indent>[ \t]*)(?:[-+*]|\d{1,9}[.)])(?:[ \t]+|\Z)(?:\[[ xX]\][ \t]+)?")
OTHER_ITEM = re.compile(r" {0,3}(?:\[\^[^\]\s]+\]:|:)[ \t]+")  # a footnote, or a definition in a list of them
FENCE = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`]*\Z)|~{3,}|\$\$(?!.*\$\$))")
HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+|\Z)")
BLANKS = r"(?:(?<![ \t])[ \t]++)"  # from their beginning on: nothing is tried from each of them
HEADING_END = re.compile(rf"(?:{BLANKS}#++)?(?:{BLANKS}?\{{[^{{}}]*+\}})?{BLANKS}?\Z")
RULE = re.compile(r"[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+[ \t]*|-+[ \t]*)\Z")
DEFINITION = re.compile(r" {0,3}\[(?!\^)(?P<label>(?:[^\[\]\\]|\\.)+)\]:")
DELIMITER_ROW = re.compile(r"[ \t]*+\|?+[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)*+\|?[ \t]*+\Z")
CELL = re.compile(r"(?:[^|\\]|\\.|\\\Z)+")
# What stays as it is: blocks of HTML, admonitions and formulas, up to an empty line; lines of templates and directives.
OPAQUE_BLOCK = re.compile(r"[ \t]*(?:<[A-Za-z!?/]|!!!|\?\?\?|\\begin\{|\\\[|\$\$)")
OPAQUE_LINE = re.compile(r"[ \t]*(?::::|\*\[[^\]]*\]:|(?:\{[%{<].*[%}>]\}|\{[#:.].*\}|\\[A-Za-z]+)[ \t]*\Z)")
INLINE_HTML = re.compile(
    r"[ \t]*<(?:/?(?:a|abbr|b|bdi|bdo|br|cite|code|del|dfn|em|i|img|ins|kbd|mark|q|s|samp|small|span|strong|sub|sup|"
    r"time|u|var|wbr)\b|[A-Za-z][A-Za-z0-9+.-]*:|[^\s<>@]+@)",
    re.IGNORECASE,
)
HTML_ENDS = {"<!--": "-->", "<script": "</script>", "<style": "</style>", "<pre": "</pre>", "<textarea": "</textarea>"}
# What would begin a list, a heading or another block at the beginning of a line.
BLOCK_START = re.compile(r"(?:[-+*]|#{1,6}|:)(?=\s|\Z)|>|[=-]+\s*\Z|~~~|```|\||(?P<number>\d{1,9})[.)](?=\s|\Z)")
CODE_INDENT = 4
LONGEST = 20_000  # characters of a paragraph; a longer one stays as it is


class Paragraph(NamedTuple):
    """A text, on one line or several: what is between its lines is the end of one and the prefix of the next."""

    lines: list[str]
    between: list[str]
    passage: Passage
    notation: Notation

    @property
    def source(self) -> str:
        """The paragraph as it is written."""
        return self.lines[0] + "".join(map("".join, zip(self.between, self.lines[1:], strict=True)))

    def write(self, answer: str) -> str:
        """The paragraph with a translation; an empty one leaves it as it is."""
        if answer in ("", self.passage.text):
            return self.source
        text = self.passage.write(answer, self.notation.make_spelling())
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
        place, columns, is_item = 0, 0, False
        core = line.rstrip(" \t")
        rule = len(core.rstrip(core[-1:] + " \t"))  # from here on the line has but one kind of mark, as a rule has
        while True:
            if found := QUOTE.match(line, place):
                pass
            elif place >= rule and RULE.match(line, place):
                break
            elif (found := ITEM.match(line, place)) and count_columns(found["indent"]) < self.margin + CODE_INDENT:
                is_item = True
                self.margin = columns + count_columns(found[0], columns)
            elif (found := OTHER_ITEM.match(line, place)) and (found[0].lstrip()[0] == ":" or not self.texts):
                is_item = True
                self.margin = CODE_INDENT
            else:
                break
            place, columns = found.end(), columns + count_columns(found[0], columns)
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
        text = "\n".join(lines)
        notation = Notation(text, in_table)
        passage = Passage(parse_inline(text, self.labels, notation) if len(text) <= LONGEST else ())
        return Paragraph(lines, between, passage, notation)


def count_columns(text: str, before: int = 0) -> int:
    """The width of a text behind so many columns, in which a tab counts to the next multiple of four."""
    offset = before % CODE_INDENT
    return len((" " * offset + text).expandtabs(CODE_INDENT)) - offset
