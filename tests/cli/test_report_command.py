"""`regard report`, and documents of types that are not translated."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Command
from support.training import copy_run

from regard.cli.translate import find_document
from regard.errors import UserError
from regard.runs import Run


def test_report_command_writes_a_page_or_names_the_missing_run(run: Run, tmp_path: Path, regard: Command) -> None:
    run = copy_run(run, tmp_path / "run")
    assert not (run.folder / "report.html").exists(), "the Python API writes no report"
    done = regard("report", run.folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{run.folder / 'report.html'}\n"
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "BLEU by words of the source" in page
    missing = regard("report", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "nowhere is not a run" in missing.stderr


@pytest.mark.parametrize("name", ["letter.pdf", "letter.DOC", "letter.rtf", "table.xlsx", "letters.zip"])
def test_binary_document_is_refused_and_not_suggested_as_lines(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} is not in a supported document format: \.docx") as refused:
        find_document([tmp_path / name])
    assert "convert it to one of them first, such as .docx, .html or .txt" in str(refused.value)
    assert "<" not in str(refused.value)


@pytest.mark.parametrize("name", ["memory.tmx", "app.JSON", "page.xml", "table.csv", "app.ts"])
def test_markup_that_is_not_read_is_refused_and_not_translated_as_lines(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('<?xml version="1.0"?>\n<a>text</a>\n', encoding="utf-8")
    with pytest.raises(UserError, match=rf"{name} is not in a supported document format.*\.sdlxliff.* line by line"):
        find_document([tmp_path / name])


@pytest.mark.parametrize("name", ["memory.tmx.gz", "letter.html.gz", "notes.md.xz"])
def test_compressed_markup_is_refused_and_not_translated_as_lines(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} is a compressed \.\w+ file and not lines of text"):
        find_document([Path(name)])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_xml_in_utf_16_is_refused_and_not_translated_as_lines(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "app.ts").write_text('<?xml version="1.0"?>\n<a>text</a>\n', encoding=encoding)
    with pytest.raises(UserError, match=r"app\.ts is not in a supported document format"):
        find_document([tmp_path / "app.ts"])


@pytest.mark.parametrize("name", ["corpus.ps", "corpus.en", "lines.txt", "lines"])
def test_text_files_are_translated_as_lines(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text <?xml\n", encoding="utf-8")
    assert find_document([tmp_path / name]) is None
    for page in ("page.md", "page.mkd", "page.mkdn", "page.mdown", "page.Rmd", "page.qmd"):
        assert find_document([tmp_path / page]) == tmp_path / page
