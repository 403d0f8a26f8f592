"""Translate a document by the parser of its format; also the parser of plain text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import PurePath
from textwrap import shorten

from regard.data.languages import are_different_languages
from regard.documents.base import (
    ArchiveParser,
    DocumentError,
    DocumentLimits,
    DocumentParser,
    ParsedDocument,
    TranslatableText,
    check_tag_count,
    decode_utf8,
    unpack_zip,
)
from regard.documents.escaping import escape_text, has_translatable_words, replace_line_breaks, unescape_markup
from regard.documents.html_epub import parse_epub, parse_html, parse_xhtml
from regard.documents.markdown import parse_markdown
from regard.documents.office import OFFICE_PARSERS
from regard.documents.po import parse_po
from regard.documents.subtitles import parse_srt, parse_vtt
from regard.documents.tagged_text import strip_placeholder_tags
from regard.documents.xliff import parse_xliff
from regard.errors import to_single_line
from regard.paths import read_package_yaml

LINE_END = re.compile(r"(\r\n|\r|\n)")


def parse_plain_text(content: bytes) -> ParsedDocument:
    """Parse a text file; each line is a text."""
    source = decode_utf8(content)
    parts = LINE_END.split(source.text)
    positions = [position for position in range(0, len(parts), 2) if has_translatable_words(parts[position])]
    texts = [TranslatableText(escape_text(parts[position].strip())) for position in positions]

    def write() -> bytes:
        for position, text in zip(positions, texts, strict=True):
            if text.translation:
                line = replace_line_breaks(unescape_markup(text.translation)).strip()
                parts[position] = parts[position].replace(parts[position].strip(), line, 1)
        return source.encode_like_source("".join(parts))

    return ParsedDocument(texts, write)


# Extensions, parser, and bytes that its time depends on, which count for the limit on tags.
_TEXT_FORMATS: tuple[tuple[str, DocumentParser, bytes], ...] = (
    (".txt", parse_plain_text, b"\r\n"),
    (".html .htm", parse_html, b"<"),
    (".xhtml", parse_xhtml, b"<"),
    (".srt", parse_srt, b"\r\n<{"),
    (".vtt", parse_vtt, b"\r\n<{"),
    (".xliff .xlf .sdlxliff .mqxliff", parse_xliff, b"<"),
    (".po", parse_po, b"\n<"),
    (".md .markdown .mdown .mkd .mkdn .rmd .qmd", parse_markdown, b"\r\n<*_`[]{\\&"),
)
TEXT_PARSERS = {name: (parser, markup) for names, parser, markup in _TEXT_FORMATS for name in names.split()}
ZIP_PARSERS: dict[str, ArchiveParser] = {**OFFICE_PARSERS, ".epub": parse_epub}
DOCUMENT_EXTENSIONS = (*TEXT_PARSERS, *ZIP_PARSERS)
UNSUPPORTED_EXTENSIONS: dict[str, list[str]] = read_package_yaml("regard.documents", "unsupported.yaml")

MAX_WARNINGS = 10  # texts without a translation that are reported one by one


def list_supported_extensions() -> list[str]:
    """Return the extensions that can be read with the installed packages: .po needs translate-toolkit."""
    return [extension for extension in DOCUMENT_EXTENSIONS if extension != ".po" or find_spec("translate")]


def translate_document(
    name: str,
    content: bytes,
    translate: Callable[[Sequence[str]], list[str]],
    limits: DocumentLimits | None = None,
    warn: Callable[[str], None] | None = None,
    languages: tuple[str | None, str | None] = (None, None),
) -> bytes:
    """Translate the text of a document and keep everything else; the extension of `name` selects the format.

    `translate` gets all texts at once. They are markup (`&amp;`, `&lt;`) with tags `<r1>…</r1>` and `<r2/>`, which it
    returns around, or beside, the translation of the words there. A text with an empty translation stays unchanged, and
    `warn` gets a sentence about it. Raise DocumentError if the document declares other languages than `languages`
    (source, target).
    """
    title = to_single_line(name)
    try:
        parsed = _parse_document(PurePath(name).suffix.lower(), content, limits or DocumentLimits())
    except DocumentError as error:
        raise DocumentError(f"{title} {error}") from error
    for side, declared, known in zip(("source", "target"), parsed.languages, languages, strict=True):
        if are_different_languages(declared, known):
            raise DocumentError(f"{title} declares {declared} as its {side} language, not {known}")
    if not parsed.texts:
        return content
    translations = translate([part.text for part in parsed.texts])
    if len(translations) != len(parsed.texts):
        raise ValueError(f"translate returned {len(translations)} translations for {len(parsed.texts)} texts")
    for part, translation in zip(parsed.texts, translations, strict=True):
        part.translation = translation if strip_placeholder_tags(translation).strip() else ""
    empty = [part.text for part in parsed.texts if not part.translation]
    if warn and empty:
        for text in empty[:MAX_WARNINGS]:
            source = shorten(strip_placeholder_tags(text), 60)
            warn(f"{title}: no translation for {source!r}, which stays as it is")
        if len(empty) > MAX_WARNINGS:
            warn(f"{title}: {len(empty):,} of {len(parsed.texts):,} texts have no translation")
    if languages[1]:
        parsed.set_language(languages[1])
    return parsed.write()


def _parse_document(extension: str, content: bytes, limits: DocumentLimits) -> ParsedDocument:
    if extension not in DOCUMENT_EXTENSIONS:
        raise DocumentError(f"is not in a supported document format: {', '.join(DOCUMENT_EXTENSIONS)}")
    max_bytes = limits.text_bytes if extension in TEXT_PARSERS else limits.total_bytes
    if len(content) > max_bytes:
        raise DocumentError(f"has {len(content):,} bytes; the maximum is {max_bytes:,}")
    if extension in ZIP_PARSERS:
        return ZIP_PARSERS[extension](unpack_zip(content, limits), limits)
    parse, markup_bytes = TEXT_PARSERS[extension]
    check_tag_count([content], limits, markup_bytes)
    return parse(content)
