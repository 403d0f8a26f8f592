"""Documents in `regard translate`: one file in, the same file translated out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from regard.cli.engine import Translate
from regard.cli.pipe import chunks
from regard.errors import UserError

AT_ONCE = 512  # texts that are sorted by length together
BYTE_ORDER_MARKS = b"\xef\xbb\xbf\xff\xfe"  # the bytes of those of UTF-8 and UTF-16
# Formats that are not read, and whose lines are not lines of text; no suffixes of corpora, as in `corpus.ps`.
MARKUP = frozenset(
    (
        *(".adoc", ".csv", ".dita", ".fodt", ".ftl", ".ini", ".ipynb", ".json", ".json5", ".jsonl"),
        *(".mdx", ".plist", ".pot", ".properties", ".resx", ".rst", ".sbv", ".strings", ".svg", ".tbx"),
        *(".tex", ".tmx", ".toml", ".tsv", ".ttml", ".ttx", ".txlf", ".txml", ".xml", ".yaml", ".yml"),
    )
)
BINARY = frozenset(  # and RTF, which has no line of plain text either
    (
        *(".doc", ".docm", ".idml", ".indd", ".mqxlz", ".numbers", ".odg", ".ods", ".pages", ".parquet", ".pdf"),
        *(".ppsx", ".ppt", ".pptm", ".rtf", ".sdlppx", ".sdltm", ".xls", ".xlsm", ".xlsx", ".xlz", ".zip"),
    )
)


def document(files: Sequence[Path]) -> Path | None:
    """The file, if it is a document and no lines of text; one at a time is translated."""
    from regard.documents import ENDINGS

    found = next((file for file in files if file.suffix.lower() in ENDINGS and file.suffix.lower() != ".txt"), None)
    for file in files:
        suffix = file.suffix.lower()
        refused = f"{file} is not among the documents that are translated: {', '.join(sorted(ENDINGS))}"
        if suffix in BINARY:
            raise UserError(f"{refused}; convert it to one of them first, such as .docx, .html or .txt")
        if suffix in MARKUP or (suffix not in ENDINGS and is_xml(file)):
            raise UserError(
                f"{refused}; any other text file is translated line by line (to do so with this one: "
                f"regard translate RUN < {file})"
            )
    if found and len(files) > 1:
        raise UserError(f"one document at a time, not {len(files)} files: {' '.join(map(str, files))}")
    return found


def is_xml(path: Path) -> bool:
    """Return True if a regular file begins with an XML declaration, in UTF-8 or UTF-16."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(16).lstrip(BYTE_ORDER_MARKS).replace(b"\0", b"").startswith(b"<?xml")
    except OSError:
        return False  # reported where the file is read


def write(path: Path, translate: Translate, languages: tuple[str | None, str | None]) -> None:
    """Translate a document to standard output; one that states other languages is refused."""
    from regard.console import say
    from regard.documents import ARCHIVES, translated
    from regard.translate import describe_unaligned_tags

    if path.suffix.lower() in ARCHIVES and sys.stdout.isatty():
        raise UserError(
            f"{path} is no text that a terminal could show; send it to a file: > {path.stem}-2{path.suffix}"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error

    def warn(message: str) -> None:
        say(f"warning: {message}")

    def texts(given: Sequence[str]) -> list[str]:
        made = [made for some in translate(chunks(given, AT_ONCE)) for made in some]
        if unaligned := sum(one.unaligned_tags > 0 for one in made):
            warn(describe_unaligned_tags(unaligned, len(made)))
        return [one.text for one in made]

    sys.stdout.buffer.write(translated(path.name, content, texts, warn=warn, languages=languages))
    sys.stdout.buffer.flush()
