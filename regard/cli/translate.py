"""`regard translate`: translate text line by line, or a document; `regard predict` for models of other tasks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from regard.cli import options, stdio
from regard.cli.options import (
    EngineOptions,
    InferenceDevice,
    SearchArguments,
    TranslateChunks,
    choose_device_of_option,
    describe_options,
    split_runs,
)
from regard.console import log_message, make_progress_bar
from regard.data.readers.text import DECOMPRESSORS, STANDARD_INPUT, format_pharaoh, iterate_available_chunks
from regard.errors import UserError
from regard.paths import format_json
from regard.runs import Run

if TYPE_CHECKING:
    from regard.translate import Translation
    from regard.translate.translation import Alignment


LINES_PER_CHUNK = 512  # lines, or texts of a document, that are sorted by length together
INPUTS_PER_CHUNK = 64  # inputs that are predicted together


@describe_options
def translate(
    runs: list[Path],
    beam: int = 5,
    n_best: int = 1,
    as_json: bool = False,
    alignments: str | None = None,
    units: Literal["words", "subwords", "characters"] = "words",
    tags: bool = False,
    domain: str | None = None,
    to: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    *,
    search: SearchArguments,
    engine_options: EngineOptions,
) -> None:
    """Translate a file or standard input line by line, or a document (.html, .md, .xliff, .po, .docx …) as a whole.

    Example: echo "a sentence" | regard translate runs/mine --json
    """
    if domain and to:
        raise UserError("--domain and --to both name the tag before the source; give one of them")
    if alignments not in (None, "pharaoh"):
        raise UserError(f"--alignments must be 'pharaoh', not {alignments!r}")
    if alignments and as_json:
        raise UserError("--json includes the links; leave out --alignments")
    if alignments and tags:
        raise UserError(
            "--alignments numbers words without tags and cannot be combined with --tags; use --json, which lists them"
        )
    if units != "words" and not (alignments or as_json):
        raise UserError(f"--units {units} is for alignments: it needs --alignments pharaoh or --json")
    folders, files = split_runs(runs)
    document = find_document(files)
    if document and (as_json or alignments or n_best > 1):
        raise UserError(f"{document} is a document; --json, --alignments and --n-best are for lines of text")
    output_format = "json" if as_json else "pharaoh" if alignments else "text"
    translation_options = search.parse(
        beam=beam,
        n_best=n_best,
        alignments=output_format != "text",
        tags=tags or document is not None,
        domain=domain if to is None else to,
        units=units,
    )
    open_translator = partial(engine_options.open_translator, folders, translation_options)
    if document and out and out.suffix.lower() != document.suffix.lower():
        raise UserError(f"{document} is translated to a {document.suffix} file: give --out this extension, not {out}")
    if document:
        from regard.documents.document import ZIP_PARSERS

        is_binary = document.suffix.lower() in ZIP_PARSERS
        if is_binary and out is None and sys.stdout.isatty():
            name = f"{document.stem}-2{document.suffix}"
            raise UserError(f"{document} is binary; write the translation to a file: --out {name}")
        with stdio.exit_on_broken_pipe(), stdio.open_output(out, overwrite) as write:
            with open_translator() as translate_chunks:
                content = translate_document_file(document, translate_chunks, options.read_languages(folders[0]))
            write(content)
        return
    chunks, counts = stdio.read_line_chunks(files, LINES_PER_CHUNK), Counter[str]()
    with (
        stdio.exit_on_broken_pipe(),
        stdio.open_output(out, overwrite) as write,
        open_translator() as translate_chunks,
    ):
        for translations in show_line_progress(translate_chunks(chunks), to_file=out is not None):
            lines = []
            for translation in translations:
                number = counts["total"] if n_best > 1 else None
                lines.append(format_translation(translation, output_format, number))
                count_translation(counts, translation, tags)
            write("".join(lines))
    if counts["cut off"]:
        log_message(f"{counts['cut off']} of {counts['total']:,} translations were cut off at the maximum length")
    log_warnings(counts)


def show_line_progress(chunks: Iterator[list[Translation]], to_file: bool = False) -> Iterator[list[Translation]]:
    """Yield the chunks; show a progress bar of lines unless the translations go to the terminal."""
    if sys.stdout.isatty() and not to_file:
        yield from chunks
        return
    with make_progress_bar() as progress:
        task = progress.add_task("lines", total=None, note="")
        for chunk in chunks:
            yield chunk
            progress.advance(task, len(chunk))


def _log_warning(message: str) -> None:
    log_message(f"warning: {message}")


def count_translation(counts: Counter[str], translation: Translation, tags: bool = False) -> None:
    """Count a translation for warnings; with --tags, a text of tags alone is empty."""
    from regard.translate.markup import ANY_TAG

    texts = translation.source, translation.text
    has_source, has_text = (bool((ANY_TAG.sub("", text) if tags else text).strip()) for text in texts)
    counts["total"] += 1
    counts["cut off"] += not translation.ended
    counts["sources"] += has_source
    counts["empty"] += has_source and not has_text
    counts["unaligned"] += translation.unaligned_tags > 0
    counts["untranslated"] += translation.untranslated > 0


def log_warnings(counts: Counter[str]) -> None:
    """Log warnings for empty translations, unaligned tags and untranslated sentences."""
    from regard.translate.translation import describe_problems

    if counts["empty"]:
        which = f"{counts['empty']:,} of" if counts["empty"] < counts["sources"] else "all"
        _log_warning(f"{which} {counts['sources']:,} translations are empty")
    for warning in describe_problems(counts["total"], counts["unaligned"], counts["untranslated"]):
        _log_warning(warning)


def format_translation(best: Translation, output_format: str, number: int | None = None) -> str:
    """Return a translation as a line; with the number of its source, as n-best lines with scores, as in Moses."""
    if output_format == "json":
        fields = make_translation_dict(best)
        if number is not None:
            fields["alternatives"] = [make_translation_dict(other) for other in best.alternatives]
        return format_json(fields) + "\n"
    lines = ""
    for translation in (best, *best.alternatives):
        text = translation.text.replace("\n", " ").replace("\r", " ")  # one output line per input line
        parts = [text] if number is None else [str(number), text, f"{translation.score:.4f}"]
        if output_format == "pharaoh":  # the links are empty if the model has no attention
            parts.append(format_pharaoh(translation.alignment.pairs) if translation.alignment else "")
        lines += " ||| ".join(parts) + "\n"
    return lines


def make_translation_dict(translation: Translation) -> dict[str, Any]:
    """Return a translation as a JSON object."""
    return {
        "source": translation.source,
        "text": translation.text,
        "score": round(translation.score, 6),
        "ended": translation.ended,
        "tokens": translation.tokens,
        "alignment": translation.alignment and make_alignment_dict(translation.alignment),
    }


def make_alignment_dict(alignment: Alignment) -> dict[str, Any]:
    """Return an alignment as a JSON object."""
    return {
        "units": alignment.units,
        "source": alignment.source,
        "target": alignment.target,
        "source_offsets": alignment.source_spans or None,
        "target_offsets": alignment.target_spans or None,
        "pairs": alignment.pairs,
        "soft": [[round(weight, 4) for weight in row] for row in alignment.soft.tolist()],
    }


BYTE_ORDER_MARKS = b"\xef\xbb\xbf\xff\xfe"  # of UTF-8 and UTF-16


def find_document(files: Sequence[Path]) -> Path | None:
    """Return the file if it is a document, None if files are lines of text; raise UserError for unsupported formats."""
    from regard.documents.document import DOCUMENT_EXTENSIONS, UNSUPPORTED_EXTENSIONS

    documents = []
    for file in files:
        suffix = file.suffix.lower()
        inner = PurePath(file.stem).suffix.lower() if suffix in DECOMPRESSORS else ""
        reason = f"{file} is not in a supported document format: {', '.join(sorted(DOCUMENT_EXTENSIONS))}"
        if suffix in DOCUMENT_EXTENSIONS:
            documents += [file] if suffix != ".txt" else []
        elif inner in UNSUPPORTED_EXTENSIONS["text"] or (inner in DOCUMENT_EXTENSIONS and inner != ".txt"):
            raise UserError(f"{file} is a compressed {inner} file and not lines of text; decompress it first")
        elif suffix in UNSUPPORTED_EXTENSIONS["binary"]:
            raise UserError(f"{reason}; convert it to one of them first, such as .docx, .html or .txt")
        elif suffix in UNSUPPORTED_EXTENSIONS["text"] or (suffix not in DECOMPRESSORS and _is_xml(file)):
            raise UserError(f"{reason}; to translate it line by line like plain text: regard translate RUN < {file}")
    if documents and len(files) > 1:
        raise UserError(f"name one document, not {len(files)} files: {' '.join(map(str, files))}")
    return documents[0] if documents else None


def _is_xml(path: Path) -> bool:
    """Return True if a regular file begins with an XML declaration, in UTF-8 or UTF-16."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16).lstrip(BYTE_ORDER_MARKS).replace(b"\0", b"").startswith(b"<?xml")


def translate_document_file(
    path: Path, translate_chunks: TranslateChunks, languages: tuple[str | None, str | None]
) -> bytes:
    """Return the translation of a document; raise UserError if it declares other languages."""
    from regard.documents import translate_document

    content = path.read_bytes()

    def translate_texts(texts: Sequence[str]) -> list[str]:
        chunks = translate_chunks(stdio.iterate_chunks(texts, LINES_PER_CHUNK))
        counts, translated = Counter[str](), []
        for translation in chain.from_iterable(chunks):
            count_translation(counts, translation)
            translated.append(translation.text)
        del counts["empty"]  # a document may have texts that need no translation
        log_warnings(counts)
        return translated

    return translate_document(path.name, content, translate_texts, warn=_log_warning, languages=languages)


@describe_options
def predict(
    run: Path,
    file: Path = Path("-"),
    device: InferenceDevice = "auto",
    out: Path | None = None,
    overwrite: bool = False,
    as_json: bool = False,
) -> None:
    """Print a prediction for each input as it arrives: tags, a label, an answer, a caption or numbers.

    Example: echo "a film that nobody should miss" | regard predict runs/mine --json
    """
    from regard.tasks import get_task

    task = get_task(Run(run).read_config())
    if task.command != "predict":
        raise UserError(f"{run} {task.verb}; use: regard {task.command} {run} FILE")
    predictor = task.load(run, device=choose_device_of_option(device))
    stdio.restore_default_sigpipe()
    if file == STANDARD_INPUT:
        parsed = predictor.parse_lines(stdio.iterate_stdin_lines())
        chunks = iterate_available_chunks(parsed, INPUTS_PER_CHUNK, 2 * INPUTS_PER_CHUNK)
    else:
        chunks = stdio.iterate_chunks(predictor.read_inputs(file), INPUTS_PER_CHUNK)
    with stdio.open_output(out, overwrite) as write:
        for inputs in chunks:
            for prediction in predictor.predict(inputs):
                write((format_json(prediction.to_dict()) if as_json else prediction.to_text()) + "\n")
