"""`regard report`, and documents of types that are not translated."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Command
from support.training import copy_run

from regard.cli.document import document
from regard.errors import UserError
from regard.runs import Run


def test_report_command_writes_a_page_or_names_the_missing_run(run: Run, tmp_path: Path, regard: Command) -> None:
    run = copy_run(run, tmp_path / "run")
    assert not (run.folder / "report.html").exists(), "the Python API writes no report"
    done = regard("report", run.folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{run.folder / 'report.html'}\n"
    assert "<svg" in (run.folder / "report.html").read_text(encoding="utf-8")
    missing = regard("report", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "nowhere is not a run" in missing.stderr


def test_unsupported_document_type_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"letter\.pdf is not among the documents that are translated: \.docx"):
        document([tmp_path / "letter.pdf"])
