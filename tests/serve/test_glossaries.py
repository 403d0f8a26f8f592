"""Glossaries of the HTTP service."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commands import Command
from support.server import ask_in_process

from regard.errors import UserError
from regard.runs import Run
from regard.serve.engine.models import assign_glossaries
from regard.serve.settings import Settings
from regard.translate import load

TEXTS = ["the old house", "the dog sees the house", "the young man"]
TERMS = {"house": "Katze"}


def test_service_translates_terms_by_its_glossary(run: Run) -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return (await client.post("/translate", json={"q": TEXTS, "source": "en", "target": "de"})).json()

    made = ask_in_process(run.folder, Settings(glossary={"": TERMS}), ask)["translatedText"]
    translator = load(run.folder)
    assert made == [one.text for one in translator.translate(TEXTS, beam=5, glossary=TERMS)]
    assert ["Katze" in text for text in made[:2]] == [True, True]
    assert made[2] == translator.translate(TEXTS[2:], beam=5)[0].text


def test_service_glossary_belongs_to_one_language_pair() -> None:
    one, two = {("en", "de")}, {("en", "de"), ("de", "pb")}
    assert assign_glossaries({"": TERMS}, one) == {("en", "de"): TERMS}
    assert assign_glossaries({"de-pt-BR": TERMS}, two) == {("de", "pb"): TERMS}
    with pytest.raises(UserError, match="say whose glossary it is: --glossary en-de=FILE"):
        assign_glossaries({"": TERMS}, two)
    with pytest.raises(UserError, match="no run that is served translates from fr to de"):
        assign_glossaries({"fr-de": TERMS}, two)


@pytest.mark.slow
def test_bad_service_glossary_is_a_one_line_error(regard: Command, run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("house\n", encoding="utf-8")
    (tmp_path / "odd.tsv").write_text("house\tXylophon\n", encoding="utf-8")
    (tmp_path / "good.tsv").write_text("house\tKatze\n", encoding="utf-8")
    other = tmp_path / "other"
    shutil.copytree(run.folder, other)
    for arguments, message in (
        (["--glossary", "bad.tsv"], "bad.tsv:1: a line must be a term, a tab and its translation"),
        (["--glossary", "odd.tsv"], "'Xylophon' cannot be forced"),
        (["--glossary", "good.tsv", "--glossary", "good.tsv"], "there is another one; put them in one file"),
        ([f"{other}=de-en", "--glossary", "good.tsv"], "say whose glossary it is"),
    ):
        done = regard("serve", run.folder, *arguments, "--port", 0)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
