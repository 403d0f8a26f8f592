"""`regard translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import options
from regard.cli.options import TranslateChunks, resolve_languages, split_runs
from regard.cli.stdio import exit_on_broken_pipe, iterate_chunks, read_line_chunks
from regard.errors import UserError
from regard.strict_json import dumps

if TYPE_CHECKING:
    from regard.search import LengthPenalty
    from regard.translate import Translation


LINES_PER_CHUNK = 512  # lines that are sorted by length together


def translate(
    runs: Annotated[
        list[Path], typer.Argument(help="One run, or several as an ensemble; then a file, or standard input.")
    ],
    beam: options.Beam = 5,
    n_best: options.NBest = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: text, tokens, score, alignment.")
    ] = False,
    alignments: Annotated[str | None, typer.Option(help="`pharaoh`: add word links, as in `text ||| 0-0 1-2`.")] = None,
    tags: options.Tags = False,
    domain: options.Domain = None,
    length_penalty: options.LengthPenalty = "0.6",
    coverage_penalty: options.CoveragePenalty = 0.0,
    max_length: options.MaxLength = None,
    min_length: options.MinLength = 1,
    no_repeat: options.NoRepeat = None,
    prefix: options.Prefix = "",
    force: options.Force = None,
    forbid: options.Forbid = None,
    glossary: options.Glossary = None,
    replace_unknown: options.ReplaceUnknown = False,
    dictionary: options.Dictionary = None,
    sample: options.Sample = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 1,
    engine_name: options.EngineName = options.AUTO,
    precision: options.Precision = None,
    shortlist: options.Shortlist = False,
    workers: options.Workers = None,
) -> None:
    """Translate a file, or standard input, line by line; a document (.html, .md, .xliff, .po, .docx …) as a whole.

    Example: echo "a sentence" | regard translate runs/mine --json
    """
    from regard.console import log_message
    from regard.translate import Options

    if alignments not in (None, "pharaoh"):
        raise UserError(f"--alignments is 'pharaoh', not {alignments!r}")
    if alignments and as_json:
        raise UserError("--json has the links already; leave --alignments out")
    if alignments and tags:
        raise UserError(
            "--alignments counts words, and --tags puts tags among them; --json has the words that it counts"
        )
    folders, files = split_runs(runs)
    whole = find_document(files)
    if whole and (as_json or alignments or n_best > 1):
        raise UserError(f"{whole} is translated as a document, for which there is no --json, --alignments or --n-best")
    form = "json" if as_json else "pharaoh" if alignments else "text"
    wishes = Options(
        beam=beam,
        n_best=n_best,
        alignments=form != "text",
        tags=tags or whole is not None,
        domain=domain,
        length_penalty=parse_length_penalty(length_penalty),
        coverage_penalty=coverage_penalty,
        max_length=max_length,
        min_length=min_length,
        no_repeat=no_repeat,
        prefix=prefix,
        force=force or (),
        forbid=forbid or (),
        glossary=read_two_column_file(glossary),
        replace_unknown=replace_unknown or dictionary is not None,
        dictionary=read_two_column_file(dictionary),
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    at_work = options.EngineOptions(engine_name, precision, workers, shortlist).open_translator
    if whole:
        with exit_on_broken_pipe(), at_work(folders, wishes) as translated:
            write_translated_document(whole, translated, resolve_languages(folders[:1], None, None))
        return
    given, lines = read_line_chunks(files, LINES_PER_CHUNK), TranslationWriter(n_best, form)
    with exit_on_broken_pipe(), at_work(folders, wishes) as translated:
        for made in show_line_progress(translated(given)):
            lines.write(made)
    if lines.num_truncated:
        log_message(
            f"{lines.num_truncated} of {lines.num_written:,} translations did not come to an end within their length limit"
        )
    for warning in lines.iterate_warnings():
        log_message(f"warning: {warning}")


def parse_length_penalty(argument: str) -> LengthPenalty:
    """A length penalty as it is written."""
    if argument == "average":
        return "average"
    try:
        return float(argument)
    except ValueError:
        raise UserError(f"--length-penalty is a number or 'average', not {argument!r}") from None


def read_two_column_file(path: Path | None) -> dict[str, str]:
    """Entries of a file with two columns."""
    from regard.data.readers.text_io import iterate_lines

    if path is None:
        return {}
    entries = {}
    for number, line in enumerate(iterate_lines(path), 1):
        if line.strip():
            left, tab, right = line.partition("\t")
            if not tab or not left.strip() or not right.strip():
                raise UserError(f"{path}:{number}: an entry is a term, a tab and its translation, not {line!r}")
            entries[left.strip()] = right.strip()
    return entries


def show_line_progress(chunks: Iterator[list[Translation]]) -> Iterator[list[Translation]]:
    """The same lots, with a count of their lines where a person watches and the translations go elsewhere."""
    from regard.console import make_progress_bar

    if sys.stdout.isatty():
        yield from chunks
        return
    with make_progress_bar() as progress:
        task = progress.add_task("lines", total=None, note="")
        for some in chunks:
            yield some
            progress.advance(task, len(some))


class TranslationWriter:
    """Translations as they go out, one after the other."""

    def __init__(self, n_best: int, output_format: str) -> None:
        self.n_best = n_best
        self.output_format = output_format
        self.num_written = 0  # written so far
        self.num_truncated = 0  # of these, not brought to an end
        self.num_empty = self.num_sources = 0  # empty translations, of so many sources with text
        self.num_unaligned = 0  # with tags that no alignment places
        self.num_untranslated = 0  # with sentences of the source

    def write(self, translations: Sequence[Translation]) -> None:
        """Some more, at once."""
        for made in translations:
            sys.stdout.write("".join(line + "\n" for line in self._format_lines(made)))
            self.num_written += 1
            self.num_truncated += not made.ended
            has_text = bool(made.source.strip())
            self.num_sources += has_text
            self.num_empty += has_text and not made.text.strip()
            self.num_unaligned += made.unaligned_tags > 0
            self.num_untranslated += made.untranslated > 0
        sys.stdout.flush()

    def iterate_warnings(self) -> Iterator[str]:
        """Yield a sentence for each kind of translation that a user must know of."""
        from regard.translate import describe_unaligned_tags, describe_untranslated

        if self.num_empty:
            which = (
                f"all {self.num_sources:,}"
                if self.num_empty == self.num_sources
                else f"{self.num_empty:,} of {self.num_sources:,}"
            )
            yield f"{which} translations are empty"
        if self.num_unaligned:
            yield describe_unaligned_tags(self.num_unaligned, self.num_written)
        if self.num_untranslated:
            yield describe_untranslated(self.num_untranslated, self.num_written)

    def _format_lines(self, best: Translation) -> list[str]:
        """The lines for one source; several translations carry its number and their score, as Moses writes them."""
        if self.output_format == "json":
            shown = make_translation_dict(best)
            if self.n_best > 1:
                shown["alternatives"] = [make_translation_dict(other) for other in best.alternatives]
            return [dumps(shown)]
        return [self._format_row(translation) for translation in (best, *best.alternatives)]

    def _format_row(self, translation: Translation) -> str:
        """One translation on one line."""
        text = translation.text.replace("\n", " ").replace("\r", " ")  # a line in is a line out
        parts = [str(self.num_written), text, f"{translation.score:.4f}"] if self.n_best > 1 else [text]
        return " ||| ".join([*parts, _format_links(translation)] if self.output_format == "pharaoh" else parts)


def _format_links(translation: Translation) -> str:
    """The word links in Pharaoh's form; nothing where a model has no attention."""
    from regard.evaluate import format_pharaoh

    return format_pharaoh(translation.alignment.pairs) if translation.alignment else ""


def make_translation_dict(translation: Translation) -> dict[str, Any]:
    """A translation as JSON."""
    alignment = translation.alignment
    return {
        "source": translation.source,
        "text": translation.text,
        "score": round(translation.score, 6),
        "ended": translation.ended,
        "tokens": translation.tokens,
        "alignment": alignment
        and {
            "source": alignment.source,
            "target": alignment.target,
            "pairs": alignment.pairs,
            "soft": [[round(weight, 4) for weight in row] for row in alignment.soft.tolist()],
        },
    }


TEXTS_PER_CHUNK = 512  # texts that are sorted by length together
BYTE_ORDER_MARKS = b"\xef\xbb\xbf\xff\xfe"  # the bytes of those of UTF-8 and UTF-16
# Formats that are not read, and whose lines are not lines of text; no suffixes of corpora, as in `corpus.ps`.
UNSUPPORTED_TEXT_SUFFIXES = frozenset(
    (
        *(".adoc", ".csv", ".dita", ".fodt", ".ftl", ".ini", ".ipynb", ".json", ".json5", ".jsonl"),
        *(".mdx", ".plist", ".pot", ".properties", ".resx", ".rst", ".sbv", ".strings", ".svg", ".tbx"),
        *(".tex", ".tmx", ".toml", ".tsv", ".ttml", ".ttx", ".txlf", ".txml", ".xml", ".yaml", ".yml"),
    )
)
UNSUPPORTED_BINARY_SUFFIXES = frozenset(  # and RTF, which has no line of plain text either
    (
        *(".doc", ".docm", ".idml", ".indd", ".mqxlz", ".numbers", ".odg", ".ods", ".pages", ".parquet", ".pdf"),
        *(".ppsx", ".ppt", ".pptm", ".rtf", ".sdlppx", ".sdltm", ".xls", ".xlsm", ".xlsx", ".xlz", ".zip"),
    )
)


def find_document(files: Sequence[Path]) -> Path | None:
    """The file, if it is a document and no lines of text; one at a time is translated."""
    from regard.documents import DOCUMENT_EXTENSIONS

    found = next(
        (file for file in files if file.suffix.lower() in DOCUMENT_EXTENSIONS and file.suffix.lower() != ".txt"), None
    )
    check_lines_of_text([file for file in files if file.suffix.lower() not in DOCUMENT_EXTENSIONS])
    if found and len(files) > 1:
        raise UserError(f"one document at a time, not {len(files)} files: {' '.join(map(str, files))}")
    return found


def check_lines_of_text(files: Sequence[Path]) -> None:
    """Refuse files that do not hold lines of text: mark-up, compressed documents, binary formats."""
    from regard.data.readers.text_io import DECOMPRESSORS
    from regard.documents import DOCUMENT_EXTENSIONS

    for file in files:
        suffix = file.suffix.lower()
        if suffix in DECOMPRESSORS:
            inner = PurePath(file.stem).suffix.lower()
            if inner in UNSUPPORTED_TEXT_SUFFIXES or (inner in DOCUMENT_EXTENSIONS and inner != ".txt"):
                raise UserError(f"{file} is a compressed {inner} file and not lines of text; decompress it first")
            continue
        refused = f"{file} is not among the documents that are translated: {', '.join(sorted(DOCUMENT_EXTENSIONS))}"
        if suffix in UNSUPPORTED_BINARY_SUFFIXES:
            raise UserError(f"{refused}; convert it to one of them first, such as .docx, .html or .txt")
        if suffix in UNSUPPORTED_TEXT_SUFFIXES or (suffix not in DOCUMENT_EXTENSIONS and _is_xml(file)):
            raise UserError(
                f"{refused}; any other text file is translated line by line (to do so with this one: "
                f"regard translate RUN < {file})"
            )


def _is_xml(path: Path) -> bool:
    """Return True if a regular file begins with an XML declaration, in UTF-8 or UTF-16."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(16).lstrip(BYTE_ORDER_MARKS).replace(b"\0", b"").startswith(b"<?xml")
    except OSError:
        return False  # reported where the file is read


def write_translated_document(
    path: Path, translate_chunks: TranslateChunks, languages: tuple[str | None, str | None]
) -> None:
    """Translate a document to standard output; one that states other languages is refused."""
    from regard.console import log_message
    from regard.documents import ZIP_PARSERS, translate_document
    from regard.translate import describe_unaligned_tags, describe_untranslated

    if path.suffix.lower() in ZIP_PARSERS and sys.stdout.isatty():
        raise UserError(
            f"{path} is no text that a terminal could show; send it to a file: > {path.stem}-2{path.suffix}"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error

    def warn(message: str) -> None:
        log_message(f"warning: {message}")

    def translate_texts(given: Sequence[str]) -> list[str]:
        made = [made for some in translate_chunks(iterate_chunks(given, TEXTS_PER_CHUNK)) for made in some]
        if unaligned := sum(one.unaligned_tags > 0 for one in made):
            warn(describe_unaligned_tags(unaligned, len(made)))
        if untranslated := sum(one.untranslated > 0 for one in made):
            warn(describe_untranslated(untranslated, len(made)))
        return [one.text for one in made]

    sys.stdout.buffer.write(translate_document(path.name, content, translate_texts, warn=warn, languages=languages))
    sys.stdout.buffer.flush()
