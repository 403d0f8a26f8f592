"""Markdown: paragraphs, headings, list items and table cells are texts; everything else stays as it is written.

The file is read line by line, and only what is certain to be text is translated. Code, front matter, blocks of HTML,
link definitions, formulas, templates and whatever is not understood stay byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from regard.documents.base import ParsedDocument, decode_utf8
from regard.documents.markdown_inline import EMPTY_EMPHASIS, EscapeStyle, normalize_link_label, parse_inline
from regard.documents.tagged_text import TaggedText

LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*[\r\n](?:.*?[\r\n])??(?:\1|\.\.\.)[ \t]*(?=[\r\n]|\Z)", re.DOTALL)
BLOCK_QUOTE = re.compile(r" {0,3}>[ \t]?")
LIST_ITEM = re.compile(r"(?P<indent>[ \t]*)(?:[-+*]|\d{1,9}[.)])(?:[ \t]+|\Z)(?:\[[ xX]\][ \t]+)?")
FOOTNOTE_OR_DEFINITION = re.compile(
    r" {0,3}(?:\[\^[^\]\s]+\]:|:)[ \t]+"
)  # a footnote, or a definition in a list of them
CODE_FENCE = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`]*\Z)|~{3,}|\$\$(?!.*\$\$))")
HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+|\Z)")
BLANKS = r"(?:(?<![ \t])[ \t]++)"  # from their beginning on: nothing is tried from each of them
HEADING_END = re.compile(rf"(?:{BLANKS}#++)?(?:{BLANKS}?\{{[^{{}}]*+\}})?{BLANKS}?\Z")
THEMATIC_BREAK = re.compile(r"[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+[ \t]*|-+[ \t]*)\Z")
LINK_DEFINITION = re.compile(r" {0,3}\[(?!\^)(?P<label>(?:[^\[\]\\]|\\.)+)\]:")
DELIMITER_ROW = re.compile(r"[ \t]*+\|?+[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)*+\|?[ \t]*+\Z")
TABLE_CELL = re.compile(r"(?:[^|\\]|\\.|\\\Z)+")
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
MAX_PARAGRAPH_LENGTH = 20_000  # characters of a paragraph; a longer one stays as it is


class Paragraph(NamedTuple):
    """A text, on one line or several: what is between its lines is the end of one and the prefix of the next."""

    lines: list[str]
    separators: list[str]
    tagged_text: TaggedText
    escape_style: EscapeStyle

    @property
    def source(self) -> str:
        """The paragraph as it is written."""
        return self.lines[0] + "".join(map("".join, zip(self.separators, self.lines[1:], strict=True)))

    def write(self, translation: str) -> str:
        """The paragraph with a translation; an empty one leaves it as it is."""
        if translation in ("", self.tagged_text.text):
            return self.source
        text = self.tagged_text.write(translation, self.escape_style.make_markdown_escaper())
        first, *others = EMPTY_EMPHASIS.sub("", text).replace("\0", "").split("\n")
        made = _escape_block_start(first)
        for line, between in zip(others, self.separators, strict=False):
            if BLOCK_START.match(line) and not made.endswith(("  ", "\\")):
                made += f" {line}"  # one line: at the beginning of another one it would be a list or the like
            else:
                made += between + _escape_block_start(line)
        return made


def _escape_block_start(line: str) -> str:
    """Put a backslash before what would begin a list, a heading or another block."""
    found = BLOCK_START.match(line)
    if not found:
        return line
    place = found.end("number") if found["number"] else 0
    return f"{line[:place]}\\{line[place:]}"


def parse_markdown(content: bytes) -> ParsedDocument:
    """Read a Markdown file."""
    source = decode_utf8(content)
    head = FRONT_MATTER.match(source.text)
    start = head.end() if head else 0
    lines = LINE.findall(source.text, start)
    labels = {
        normalize_link_label(found["label"]) for found in (LINK_DEFINITION.match(line) for line, _ in lines) if found
    }
    parts = [source.text[:start], *MarkdownBlockParser(lines, labels).iterate_blocks()]
    texts = [part.tagged_text.text for part in parts if isinstance(part, Paragraph) and part.tagged_text.text]

    def write(translations: Sequence[str]) -> bytes:
        rest = iter(translations)
        made = []
        for part in parts:
            if isinstance(part, str):
                made.append(part)
            else:
                made.append(part.write(next(rest)) if part.tagged_text.text else part.source)
        return source.encode_like_source("".join(made))

    return ParsedDocument(texts, write)


class MarkdownBlockParser:
    """Split lines into paragraphs to translate and parts that stay as they are."""

    def __init__(self, lines: Sequence[tuple[str, str]], link_labels: Collection[str]) -> None:
        self.lines = lines
        self.link_labels = link_labels
        self.paragraph_lines: list[str] = []  # of the paragraph that is open
        self.separators: list[str] = []
        self.line_end = ""  # of its last line
        self.content_column = 0  # columns before the content of the list item that lines may belong to

    def iterate_blocks(self) -> Iterator[str | Paragraph]:
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
                yield from self.flush_paragraph()
            following = self.lines[place][0] if place < len(self.lines) else ""
            if table and "|" in rest:
                yield from self.parse_table_row(prefix, rest, end)
                continue
            table = False
            if "|" in rest and not self.paragraph_lines and self.is_delimiter_row(following):
                table = True
                yield from self.parse_table_row(prefix, rest, end)
                yield "".join(self.lines[place])
                place += 1
            elif fence := CODE_FENCE.match(rest):
                yield from self.flush_paragraph()
                until = fence["mark"]
                yield line + end
            elif (
                self.is_indented_code(rest)
                or (not self.paragraph_lines and LINK_DEFINITION.match(rest))
                or not rest.strip()
            ):
                yield line + end
            elif THEMATIC_BREAK.match(rest) or OPAQUE_LINE.match(rest):
                yield from self.flush_paragraph()
                yield line + end
            elif OPAQUE_BLOCK.match(rest) and not INLINE_HTML.match(rest):
                yield from self.flush_paragraph()
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
                yield from self.flush_paragraph()
                tail = HEADING_END.search(rest, heading.end())
                stop = tail.start() if tail else len(rest)
                yield prefix + heading[0]
                yield self.make_paragraph([rest[heading.end() : stop]], [])
                yield rest[stop:] + end
            else:
                indent = len(rest) - len(rest.lstrip()) if self.paragraph_lines else 0
                if self.paragraph_lines:
                    self.separators.append(self.line_end + prefix + rest[:indent])
                else:
                    yield prefix
                self.paragraph_lines.append(rest[indent:])
                self.line_end = end
        yield from self.flush_paragraph()

    def find_prefix(self, line: str) -> tuple[str, bool]:
        """Return what is before the content of a line (quotes, list markers), and whether a new block begins there."""
        place, columns, is_item = 0, 0, False
        core = line.rstrip(" \t")
        rule = len(core.rstrip(core[-1:] + " \t"))  # from here on the line has but one kind of mark, as a rule has
        while True:
            if found := BLOCK_QUOTE.match(line, place):
                pass
            elif place >= rule and THEMATIC_BREAK.match(line, place):
                break
            elif (found := LIST_ITEM.match(line, place)) and _count_columns(
                found["indent"]
            ) < self.content_column + CODE_INDENT:
                is_item = True
                self.content_column = columns + _count_columns(found[0], columns)
            elif (found := FOOTNOTE_OR_DEFINITION.match(line, place)) and (
                found[0].lstrip()[0] == ":" or not self.paragraph_lines
            ):
                is_item = True
                self.content_column = CODE_INDENT
            else:
                break
            place, columns = found.end(), columns + _count_columns(found[0], columns)
        if not is_item and not self.paragraph_lines and line[place:].strip() and not line[place].isspace():
            self.content_column = 0
        return line[:place], is_item

    def is_indented_code(self, rest: str) -> bool:
        """Return True for a line of indented code."""
        indent = rest[: len(rest) - len(rest.lstrip())]
        return not self.paragraph_lines and _count_columns(indent) >= self.content_column + CODE_INDENT

    def is_delimiter_row(self, line: str) -> bool:
        """Return True for the line of dashes under the head of a table."""
        prefix = BLOCK_QUOTE.match(line)
        rest = line[prefix.end() :] if prefix else line
        return "-" in rest and "|" in rest and bool(DELIMITER_ROW.match(rest))

    def parse_table_row(self, prefix: str, row: str, line_end: str) -> Iterator[str | Paragraph]:
        """The cells of a row of a table."""
        yield prefix
        place = 0
        for found in TABLE_CELL.finditer(row):
            if found[0].count("`") % 2 == 0:  # else code goes on behind the |
                yield row[place : found.start()]
                yield self.make_paragraph([found[0]], [], in_table=True)
                place = found.end()
        yield row[place:] + line_end

    def flush_paragraph(self) -> Iterator[str | Paragraph]:
        """The paragraph that is open, which ends."""
        if self.paragraph_lines:
            yield self.make_paragraph(self.paragraph_lines, self.separators)
            yield self.line_end
            self.paragraph_lines, self.separators = [], []

    def make_paragraph(self, lines: list[str], separators: list[str], in_table: bool = False) -> Paragraph:
        """A paragraph of these lines."""
        text = "\n".join(lines)
        notation = EscapeStyle(text, in_table)
        passage = TaggedText(
            parse_inline(text, self.link_labels, notation) if len(text) <= MAX_PARAGRAPH_LENGTH else ()
        )
        return Paragraph(lines, separators, passage, notation)


def _count_columns(text: str, start_column: int = 0) -> int:
    """The width of a text behind so many columns, in which a tab counts to the next multiple of four."""
    offset = start_column % CODE_INDENT
    return len((" " * offset + text).expandtabs(CODE_INDENT)) - offset
