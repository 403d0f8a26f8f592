"""Markdown: translate paragraphs, headings, list items and table cells; copy everything else.

The file is read line by line, and only what is certain to be text is translated. Code, front matter, blocks of HTML,
link definitions, formulas, templates and whatever is not recognised are copied byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from regard.documents.base import ParsedDocument, decode_utf8
from regard.documents.markdown_inline import EMPTY_EMPHASIS, EscapeStyle, normalize_link_label, parse_inline
from regard.documents.tagged_text import TaggedText, join_parts

LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*[\r\n](?:.*?[\r\n])??(?:\1|\.\.\.)[ \t]*(?=[\r\n]|\Z)", re.DOTALL)
BLOCK_QUOTE = re.compile(r" {0,3}>[ \t]?")
LIST_ITEM = re.compile(r"(?P<indent>[ \t]*)(?:[-+*]|\d{1,9}[.)])(?:[ \t]+|\Z)(?:\[[ xX]\][ \t]+)?")
FOOTNOTE_OR_DEFINITION = re.compile(r" {0,3}(?:\[\^[^\]\s]+\]:|:)[ \t]+")  # definition: of a definition list
CODE_FENCE = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`]*\Z)|~{3,}|\$\$(?!.*\$\$))")
HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+|\Z)")
BLANKS = r"(?:(?<![ \t])[ \t]++)"  # matched from their beginning only, so that matching takes linear time
HEADING_END = re.compile(rf"(?:{BLANKS}#++)?(?:{BLANKS}?\{{[^{{}}]*+\}})?{BLANKS}?\Z")
THEMATIC_BREAK = re.compile(r"[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+[ \t]*|-+[ \t]*)\Z")
LINK_DEFINITION = re.compile(r" {0,3}\[(?!\^)(?P<label>(?:[^\[\]\\]|\\.)+)\]:")
DASHES = r"[ \t]*+:?-++:?[ \t]*+"
DELIMITER_ROW = re.compile(rf"(?: {{0,3}}>[ \t]?)?[ \t]*+\|?+{DASHES}(?:\|{DASHES})*+\|?[ \t]*+\Z")
TABLE_CELL = re.compile(r"(?:[^|\\]|\\.|\\\Z)+")
# Copied: blocks of HTML, admonitions and formulas, up to an empty line; lines of templates and directives.
OPAQUE_BLOCK = re.compile(r"[ \t]*(?:<[A-Za-z!?/]|!!!|\?\?\?|\\begin\{|\\\[|\$\$)")
OPAQUE_LINE = re.compile(r"[ \t]*(?::::|\*\[[^\]]*\]:|(?:\{[%{<].*[%}>]\}|\{[#:.].*\}|\\[A-Za-z]+)[ \t]*\Z)")
INLINE_HTML = re.compile(
    r"[ \t]*<(?:/?(?:a|abbr|b|bdi|bdo|br|cite|code|del|dfn|em|i|img|ins|kbd|mark|q|s|samp|small|span|strong|sub|sup|"
    r"time|u|var|wbr)\b|[A-Za-z][A-Za-z0-9+.-]*:|[^\s<>@]+@)",
    re.IGNORECASE,
)
HTML_ENDS = {"<!--": "-->", "<script": "</script>", "<style": "</style>", "<pre": "</pre>", "<textarea": "</textarea>"}
# Texts that begin a list, a heading or another block at the beginning of a line.
BLOCK_START = re.compile(r"(?:[-+*]|#{1,6}|:)(?=\s|\Z)|>|[=-]+\s*\Z|~~~|```|\||(?P<number>\d{1,9})[.)](?=\s|\Z)")
CODE_INDENT = 4
MAX_PARAGRAPH_LENGTH = 20_000  # characters; a longer paragraph is copied


class Paragraph(TaggedText):
    """A text of one or several lines; a separator is the end of a line and the prefix of the next."""

    def __init__(
        self, lines: list[str], separators: list[str], link_labels: Collection[str], in_table: bool = False
    ) -> None:
        text = "\n".join(lines)
        self.escape_style = EscapeStyle(text, in_table)
        self.separators = separators
        nodes = parse_inline(text, link_labels, self.escape_style) if len(text) <= MAX_PARAGRAPH_LENGTH else ()
        super().__init__(nodes, lines[0] + "".join(map("".join, zip(separators, lines[1:], strict=True))))

    def write(self) -> str:
        """Return the paragraph with its translation."""
        self.escape = self.escape_style.make_markdown_escaper()
        text = super().write()
        first, *others = EMPTY_EMPHASIS.sub("", text).replace("\0", "").split("\n")
        out = _escape_block_start(first)
        for line, separator in zip(others, self.separators, strict=False):
            if BLOCK_START.match(line) and not out.endswith(("  ", "\\")):
                out += f" {line}"  # on the same line: at the beginning of a line it would be a list or another block
            else:
                out += separator + _escape_block_start(line)
        return out


def _escape_block_start(line: str) -> str:
    """Put a backslash before a text that would begin a list, a heading or another block."""
    start = BLOCK_START.match(line)
    if not start:
        return line
    position = start.end("number") if start["number"] else 0
    return f"{line[:position]}\\{line[position:]}"


def parse_markdown(content: bytes) -> ParsedDocument:
    """Parse a Markdown file."""
    source = decode_utf8(content)
    head = FRONT_MATTER.match(source.text)
    start = head.end() if head else 0
    lines = LINE.findall(source.text, start)
    definitions = filter(None, (LINK_DEFINITION.match(line) for line, _ in lines))
    labels = {normalize_link_label(definition["label"]) for definition in definitions}
    parts = [source.text[:start], *MarkdownBlockParser(lines, labels).iterate_blocks()]
    return join_parts(parts, source.encode_like_source)


class MarkdownBlockParser:
    """Split lines into paragraphs to translate and parts to copy."""

    def __init__(self, lines: Sequence[tuple[str, str]], link_labels: Collection[str]) -> None:
        self.lines = lines
        self.link_labels = link_labels
        self.paragraph_lines: list[str] = []  # of the open paragraph
        self.separators: list[str] = []
        self.line_end = ""  # of its last line
        self.content_column = 0  # column of the content of the list item that lines may belong to

    def iterate_blocks(self) -> Iterator[str | Paragraph]:
        """Yield all parts of the file, in order."""
        index, end_marker, table = 0, "", False
        while index < len(self.lines):
            line, end = self.lines[index]
            index += 1
            if end_marker:  # inside a block with an end marker
                is_fence, content = end_marker[0] in "`~$", line.lower().lstrip("> \t")
                is_closed = content.startswith(end_marker) if is_fence else end_marker in content
                end_marker = "" if is_closed else end_marker
                yield line + end
                continue
            prefix, is_item = self.find_prefix(line)
            rest = line[len(prefix) :]
            text, is_blank = rest.lstrip(), not rest.strip()
            indent = rest.removesuffix(text)
            if is_item or is_blank:
                yield from self.flush_paragraph()
            following = self.lines[index][0] if index < len(self.lines) else ""
            in_paragraph = bool(self.paragraph_lines)
            is_table_head = not (table or in_paragraph) and "|" in following and DELIMITER_ROW.match(following)
            table = "|" in rest and (table or bool(is_table_head))
            if table:
                yield from self.parse_table_row(prefix, rest, end)
                if is_table_head:
                    yield "".join(self.lines[index])
                    index += 1
            elif fence := CODE_FENCE.match(rest):
                yield from self.flush_paragraph()
                end_marker = fence["mark"]
                yield line + end
            elif is_blank or (not in_paragraph and (self.is_code_indent(indent) or LINK_DEFINITION.match(rest))):
                yield line + end
            elif THEMATIC_BREAK.match(rest) or OPAQUE_LINE.match(rest):
                yield from self.flush_paragraph()
                yield line + end
            elif OPAQUE_BLOCK.match(rest) and not INLINE_HTML.match(rest):
                yield from self.flush_paragraph()
                yield line + end
                html = text.lower()
                html_end = next((end for start, end in HTML_ENDS.items() if html.startswith(start)), "")
                end_marker = "" if html_end in html else html_end
                while not html_end and index < len(self.lines) and self.lines[index][0].strip():
                    yield "".join(self.lines[index])
                    index += 1
            elif heading := HEADING.match(rest):
                yield from self.flush_paragraph()
                tail = HEADING_END.search(rest, heading.end())
                text_end = tail.start() if tail else len(rest)
                yield prefix + heading[0]
                yield Paragraph([rest[heading.end() : text_end]], [], self.link_labels)
                yield rest[text_end:] + end
            else:
                if in_paragraph:
                    self.separators.append(self.line_end + prefix + indent)
                else:
                    yield prefix
                self.paragraph_lines.append(text if in_paragraph else rest)
                self.line_end = end
        yield from self.flush_paragraph()

    def find_prefix(self, line: str) -> tuple[str, bool]:
        """Return the prefix of a line (quotes, list markers), and True if a new block begins there."""
        position, columns, is_item = 0, 0, False
        core = line.rstrip(" \t")
        # From here on the line has one kind of character, as a thematic break has.
        break_start = len(core.rstrip(core[-1:] + " \t"))
        while True:
            if match := BLOCK_QUOTE.match(line, position):
                pass
            elif position >= break_start and THEMATIC_BREAK.match(line, position):
                break
            elif (match := LIST_ITEM.match(line, position)) and not self.is_code_indent(match["indent"]):
                is_item = True
                self.content_column = columns + _count_columns(match[0], columns)
            elif (match := FOOTNOTE_OR_DEFINITION.match(line, position)) and (
                match[0].lstrip()[0] == ":" or not self.paragraph_lines
            ):
                is_item = True
                self.content_column = CODE_INDENT
            else:
                break
            position, columns = match.end(), columns + _count_columns(match[0], columns)
        if not is_item and not self.paragraph_lines and line[position:].strip() and not line[position].isspace():
            self.content_column = 0
        return line[:position], is_item

    def is_code_indent(self, indent: str) -> bool:
        """Return True for the indentation of code."""
        return _count_columns(indent) >= self.content_column + CODE_INDENT

    def parse_table_row(self, prefix: str, row: str, line_end: str) -> Iterator[str | Paragraph]:
        """Yield the cells of a table row, and the text between them."""
        yield prefix
        position = 0
        for cell in TABLE_CELL.finditer(row):
            if cell[0].count("`") % 2 == 0:  # else code continues after the |
                yield row[position : cell.start()]
                yield Paragraph([cell[0]], [], self.link_labels, in_table=True)
                position = cell.end()
        yield row[position:] + line_end

    def flush_paragraph(self) -> Iterator[str | Paragraph]:
        """Yield the open paragraph, if any, and close it."""
        if self.paragraph_lines:
            yield Paragraph(self.paragraph_lines, self.separators, self.link_labels)
            yield self.line_end
            self.paragraph_lines, self.separators = [], []


def _count_columns(text: str, start_column: int = 0) -> int:
    """Return the width of a text that starts at a column; tabs go to the next multiple of four."""
    offset = start_column % CODE_INDENT
    return len((" " * offset + text).expandtabs(CODE_INDENT)) - offset
