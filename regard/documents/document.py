"""Plain text: each line is a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import PurePath
from textwrap import shorten

from regard.data.language_pair import are_different_languages
from regard.data.readers.text_io import to_single_line
from regard.documents.archive import DocumentLimits, DocumentParser, ZipEntry, check_tag_count, unpack_zip
from regard.documents.base import DocumentError, ParsedDocument, decode_utf8
from regard.documents.docx_pptx import parse_docx, parse_pptx
from regard.documents.escaping import escape_text, has_translatable_words, replace_line_breaks, unescape_markup
from regard.documents.html_epub import parse_epub, parse_html, parse_xhtml
from regard.documents.markdown import parse_markdown
from regard.documents.odf import parse_odp, parse_odt
from regard.documents.po import parse_po
from regard.documents.subtitles import parse_srt, parse_vtt
from regard.documents.tagged_text import strip_placeholder_tags
from regard.documents.xliff import parse_xliff

LINE_END = re.compile(r"(\r\n|\r|\n)")


def parse_plain_text(content: bytes) -> ParsedDocument:
    """A text file."""
    source = decode_utf8(content)
    pieces = LINE_END.split(source.text)
    places = [place for place in range(0, len(pieces), 2) if has_translatable_words(pieces[place])]

    def write(translations: Sequence[str]) -> bytes:
        made = list(pieces)
        for place, answer in zip(places, translations, strict=True):
            if not answer:
                continue
            before, after = _find_outer_white_space(pieces[place])
            made[place] = before + replace_line_breaks(unescape_markup(answer)).strip() + after
        return source.encode_like_source("".join(made))

    return ParsedDocument([escape_text(pieces[place].strip()) for place in places], write)


def _find_outer_white_space(line: str) -> tuple[str, str]:
    """The white space at both ends of a line."""
    bare = line.strip()
    before = len(line) - len(line.lstrip())
    return line[:before], line[before + len(bare) :]


PO_EXTENSION = ".po"
TEXT_PARSERS: dict[str, DocumentParser] = {
    ".txt": parse_plain_text,
    ".html": parse_html,
    ".htm": parse_html,
    ".xhtml": parse_xhtml,
    ".srt": parse_srt,
    ".vtt": parse_vtt,
    ".xliff": parse_xliff,
    ".xlf": parse_xliff,
    ".sdlxliff": parse_xliff,
    ".mqxliff": parse_xliff,
    PO_EXTENSION: parse_po,
    ".md": parse_markdown,
    ".markdown": parse_markdown,
    ".mdown": parse_markdown,
    ".mkd": parse_markdown,
    ".mkdn": parse_markdown,
    ".rmd": parse_markdown,
    ".qmd": parse_markdown,
}
# What a text costs most by, in formats where that is not only tags.
MARKUP_BYTES: dict[DocumentParser, bytes] = {
    parse_plain_text: b"\r\n",
    parse_srt: b"\r\n<{",
    parse_vtt: b"\r\n<{",
    parse_po: b"\n<",
    parse_markdown: b"\r\n<*_`[]{\\&",
}
ZIP_PARSERS: dict[str, Callable[[Mapping[str, ZipEntry], DocumentLimits], ParsedDocument]] = {
    ".docx": parse_docx,
    ".pptx": parse_pptx,
    ".odt": parse_odt,
    ".odp": parse_odp,
    ".epub": parse_epub,
}
DOCUMENT_EXTENSIONS = (*TEXT_PARSERS, *ZIP_PARSERS)

MAX_WARNINGS = 10  # texts without a translation that are named one by one

Translate = Callable[[Sequence[str]], list[str]]
Warn = Callable[[str], None]


def list_supported_extensions() -> list[str]:
    """The endings of what can be read with what is installed: messages need translate-toolkit."""
    return [ending for ending in DOCUMENT_EXTENSIONS if ending != PO_EXTENSION or find_spec("translate")]


def translate_document(
    name: str,
    content: bytes,
    translate: Translate,
    limits: DocumentLimits | None = None,
    warn: Warn | None = None,
    languages: tuple[str | None, str | None] = (None, None),
) -> bytes:
    """The document with its text translated and everything else as it was; its name's ending says what it is.

    `translate` gets all texts at once. They are markup (`&amp;`, `&lt;`) with tags `<r1>…</r1>` and `<r2/>`, which come
    back around, or beside, what the words there were translated to. A text with an empty translation stays as it is;
    `warn` gets a sentence for it. A document that states other languages than `languages` (source, target) is refused.
    """
    try:
        draft = _parse_document(PurePath(name).suffix.lower(), content, limits or DocumentLimits())
    except DocumentError as error:
        raise DocumentError(f"{to_single_line(name)} {error}") from error
    for side, stated, known in zip(("source", "target"), draft.languages, languages, strict=True):
        if are_different_languages(stated, known):
            raise DocumentError(f"{to_single_line(name)} states {stated} as its {side} language, not {known}")
    if not draft.texts:
        return content
    answers = translate(draft.texts)
    if len(answers) != len(draft.texts):
        raise ValueError(f"{len(draft.texts)} texts were to be translated, and {len(answers)} came back")
    empty = [
        text for text, answer in zip(draft.texts, answers, strict=True) if not strip_placeholder_tags(answer).strip()
    ]
    if warn and empty:
        for text in empty[:MAX_WARNINGS]:
            shown = shorten(strip_placeholder_tags(text), 60)
            warn(f"{to_single_line(name)}: no translation for {shown!r}, which stays as it is")
        if len(empty) > MAX_WARNINGS:
            warn(f"{to_single_line(name)}: {len(empty):,} of {len(draft.texts):,} texts have no translation")
    return draft.write([answer if strip_placeholder_tags(answer).strip() else "" for answer in answers])


def _parse_document(extension: str, content: bytes, limits: DocumentLimits) -> ParsedDocument:
    """The document of a format, read."""
    if extension not in DOCUMENT_EXTENSIONS:
        raise DocumentError(f"is no document that is read here; there are {', '.join(DOCUMENT_EXTENSIONS)}")
    most = limits.text_bytes if extension in TEXT_PARSERS else limits.total_bytes
    if len(content) > most:
        raise DocumentError(f"has {len(content):,} bytes, and may have {most:,}")
    if extension in TEXT_PARSERS:
        check_tag_count([content], limits, MARKUP_BYTES.get(TEXT_PARSERS[extension], b"<"))
    return (
        TEXT_PARSERS[extension](content)
        if extension in TEXT_PARSERS
        else ZIP_PARSERS[extension](unpack_zip(content, limits), limits)
    )
