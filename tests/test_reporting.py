"""`regard report`, and what is said of files that are no text."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Command
from support.training import TINY, corpus_files

from regard.cli.document import document
from regard.errors import UserError
from regard.runs import Run
from regard.training import train


def test_a_report_of_what_there_is(corpus: Path, tmp_path: Path, regard: Command) -> None:
    changes = {**TINY, "training.steps": 4, "training.validate_every": 2}
    run: Run = train(
        "bahdanau2015", corpus_files(corpus, "train"), tmp_path / "run", dev=corpus_files(corpus, "dev"), **changes
    )
    assert not (run.folder / "report.html").exists(), "as after Ctrl-C"
    done = regard("report", run.folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{run.folder / 'report.html'}\n"
    assert "<svg" in (run.folder / "report.html").read_text(encoding="utf-8")
    missing = regard("report", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "nowhere is not a run" in missing.stderr


def test_a_document_of_another_kind_is_named_as_that(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"letter\.pdf is not among the documents that are translated: \.docx"):
        document([tmp_path / "letter.pdf"])
