"""Markdown: translate paragraphs, headings, list items and table cells; copy everything else.

The file is read line by line, and only what is certain to be text is translated. Code, front matter, blocks of HTML,
link definitions, formulas, templates and whatever is not recognised are copied byte for byte.
"""

from __future__ import annotations

import html
import re
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from html.entities import html5

from regard.documents.base import ParsedDocument, decode_utf8
from regard.documents.escaping import ENTITY, escape_text
from regard.documents.tagged_text import InlineNode, TaggedText, join_parts, make_tag_node
from regard.tokenizers.markup import VOID_ELEMENTS, TagHalf, match_tag_pairs

# Inline markup: emphasis, links, code, HTML tags and escapes.


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


# Blocks: paragraphs, headings, lists, tables, code.

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
                lowered = text.lower()
                html_end = next((end for start, end in HTML_ENDS.items() if lowered.startswith(start)), "")
                end_marker = "" if html_end in lowered else html_end
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
