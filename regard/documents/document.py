"""A document in, its translation out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import PurePath
from textwrap import shorten

from regard.data.files import in_a_line
from regard.data.languages import are_different_languages
from regard.documents import book, exchange, lines, markdown, messages, office, opendocument, subtitles, web
from regard.documents.archive import Entry, Limits, Reader, check_tags, unpacked
from regard.documents.draft import Draft
from regard.documents.errors import DocumentError
from regard.documents.passage import bare

PO = ".po"
TEXTS: dict[str, Reader] = {
    ".txt": lines.draft,
    ".html": web.draft,
    ".htm": web.draft,
    ".xhtml": web.strict_draft,
    ".srt": subtitles.draft,
    ".vtt": subtitles.web_draft,
    ".xliff": exchange.draft,
    ".xlf": exchange.draft,
    ".sdlxliff": exchange.draft,
    ".mqxliff": exchange.draft,
    PO: messages.draft,
    ".md": markdown.draft,
    ".markdown": markdown.draft,
    ".mdown": markdown.draft,
    ".mkd": markdown.draft,
    ".mkdn": markdown.draft,
    ".rmd": markdown.draft,
    ".qmd": markdown.draft,
}
# What a text costs most by, in formats where that is not only tags.
MARKS: dict[Reader, bytes] = {
    lines.draft: b"\r\n",
    subtitles.draft: b"\r\n<{",
    subtitles.web_draft: b"\r\n<{",
    messages.draft: b"\n<",
    markdown.draft: b"\r\n<*_`[]{\\&",
}
ARCHIVES: dict[str, Callable[[Mapping[str, Entry], Limits], Draft]] = {
    ".docx": office.word,
    ".pptx": office.slides,
    ".odt": opendocument.text,
    ".odp": opendocument.slides,
    ".epub": book.draft,
}
ENDINGS = (*TEXTS, *ARCHIVES)

MOST_WARNINGS = 10  # texts without a translation that are named one by one

Translate = Callable[[Sequence[str]], list[str]]
Warn = Callable[[str], None]


def readable() -> list[str]:
    """The endings of what can be read with what is installed: messages need translate-toolkit."""
    return [ending for ending in ENDINGS if ending != PO or find_spec("translate")]


def translated(
    name: str,
    content: bytes,
    translate: Translate,
    limits: Limits | None = None,
    warn: Warn | None = None,
    languages: tuple[str | None, str | None] = (None, None),
) -> bytes:
    """The document with its text translated and everything else as it was; its name's ending says what it is.

    `translate` gets all texts at once. They are markup (`&amp;`, `&lt;`) with tags `<r1>…</r1>` and `<r2/>`, which come
    back around, or beside, what the words there were translated to. A text with an empty translation stays as it is;
    `warn` gets a sentence for it. A document that states other languages than `languages` (source, target) is refused.
    """
    try:
        draft = drafted(PurePath(name).suffix.lower(), content, limits or Limits())
    except DocumentError as error:
        raise DocumentError(f"{in_a_line(name)} {error}") from error
    for side, stated, known in zip(("source", "target"), draft.languages, languages, strict=True):
        if are_different_languages(stated, known):
            raise DocumentError(f"{in_a_line(name)} states {stated} as its {side} language, not {known}")
    if not draft.texts:
        return content
    answers = translate(draft.texts)
    if len(answers) != len(draft.texts):
        raise ValueError(f"{len(draft.texts)} texts were to be translated, and {len(answers)} came back")
    empty = [text for text, answer in zip(draft.texts, answers, strict=True) if not bare(answer).strip()]
    if warn and empty:
        for text in empty[:MOST_WARNINGS]:
            warn(f"{in_a_line(name)}: no translation for {shorten(bare(text), 60)!r}, which stays as it is")
        if len(empty) > MOST_WARNINGS:
            warn(f"{in_a_line(name)}: {len(empty):,} of {len(draft.texts):,} texts have no translation")
    return draft.write([answer if bare(answer).strip() else "" for answer in answers])


def drafted(ending: str, content: bytes, limits: Limits) -> Draft:
    """The document of a format, read."""
    if ending not in ENDINGS:
        raise DocumentError(f"is no document that is read here; there are {', '.join(ENDINGS)}")
    most = limits.text if ending in TEXTS else limits.size
    if len(content) > most:
        raise DocumentError(f"has {len(content):,} bytes, and may have {most:,}")
    if ending in TEXTS:
        check_tags([content], limits, MARKS.get(TEXTS[ending], b"<"))
    return TEXTS[ending](content) if ending in TEXTS else ARCHIVES[ending](unpacked(content, limits), limits)
