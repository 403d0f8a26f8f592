"""`regard translate`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.runs import split_runs
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.translate import Translation

AT_ONCE = 256  # lines that are read before they are translated; one where a person types


def translate(
    runs: Annotated[
        list[Path], typer.Argument(help="One run, or several as an ensemble; then a file, or standard input.")
    ],
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses that are kept open; 1 is greedy.")] = 5,
    n_best: Annotated[int, typer.Option("--n-best", min=1, help="Translations a line, the best first.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: text, tokens, score, alignment.")
    ] = False,
    alignments: Annotated[str | None, typer.Option(help="`pharaoh`: add word links, as in `text ||| 0-0 1-2`.")] = None,
) -> None:
    """Translate a file, or standard input, line by line.

    Example: echo "a sentence" | regard translate runs/mine --json
    """
    from regard.translate import load

    end_with_the_pipe()
    if n_best > beam:
        raise UserError(f"--n-best {n_best} needs a --beam of at least as many, not {beam}")
    if alignments not in (None, "pharaoh"):
        raise UserError(f"--alignments is 'pharaoh', not {alignments!r}")
    folders, files = split_runs(runs)
    if len(files) > 1:
        raise UserError(f"one file at a time, not {len(files)}: {' '.join(map(str, files))}")
    form: Literal["json", "pharaoh", "text"] = "json" if as_json else "pharaoh" if alignments else "text"
    translator = load(*folders)
    number = count()
    for texts in chunks(lines(files), 1 if not files and sys.stdin.isatty() else AT_ONCE):
        for made in translator.translate(texts, beam=beam, n_best=n_best, alignments=form != "text"):
            for line in written(made, next(number), n_best, form):
                sys.stdout.write(line + "\n")
        sys.stdout.flush()


def end_with_the_pipe() -> None:
    """When nobody reads on (`| head`), end as every filter does: by the signal, without a word."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def lines(files: list[Path]) -> Iterator[str]:
    """The lines of the file, or of standard input."""
    from regard.data.files import decoded, lines

    if files:
        yield from lines(files[0])
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        yield decoded(line, Path("standard input"), number)


def chunks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Some lines at a time, so that a file of any size goes through."""
    rest = iter(texts)
    while some := list(islice(rest, size)):
        yield some


def written(made: Translation, number: int, n_best: int, form: str) -> list[str]:
    """The lines for one source; several translations carry its number and their score, as Moses writes them."""
    if form == "json":
        document = described(made)
        if n_best > 1:
            document["alternatives"] = [described(other) for other in made.alternatives]
        return [json.dumps(document, ensure_ascii=False)]
    rows = []
    for translation in (made, *made.alternatives):
        text = translation.text.replace("\n", " ").replace("\r", " ")  # a line in is a line out
        parts = [str(number), text, f"{translation.score:.4f}"] if n_best > 1 else [text]
        if form == "pharaoh":
            parts.append(links(translation))
        rows.append(" ||| ".join(parts))
    return rows


def links(translation: Translation) -> str:
    """The word links in Pharaoh's form; nothing where a model has no attention."""
    from regard.evaluate import pharaoh

    return pharaoh(translation.alignment.pairs) if translation.alignment else ""


def described(translation: Translation) -> dict[str, Any]:
    """A translation as JSON."""
    alignment = translation.alignment
    return {
        "source": translation.source,
        "text": translation.text,
        "score": round(translation.score, 6),
        "tokens": translation.tokens,
        "alignment": alignment
        and {
            "source": alignment.source,
            "target": alignment.target,
            "pairs": alignment.pairs,
            "soft": [[round(weight, 4) for weight in row] for row in alignment.soft.tolist()],
        },
    }
