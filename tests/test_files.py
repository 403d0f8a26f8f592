"""Documents that are translated by the service."""

from __future__ import annotations

import html
import io
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import docx
import httpx
import pytest
from support.server import Server, ask_in_process, start_server

from regard.documents import ENDINGS
from regard.runs import Run
from regard.serve.settings import Settings
from regard.translate import Translator, load


@pytest.fixture(scope="module")
def server(fluent_run: Run) -> Iterator[Server]:
    with start_server(fluent_run.folder, "--file-limit", 500_000) as process:
        yield process


@pytest.fixture(scope="module")
def translator(fluent_run: Run) -> Translator:
    return load(fluent_run.folder)


def sent(server: Server, name: str, content: bytes, client: str = "", **fields: str) -> httpx.Response:
    asked, told = {"source": "en", "target": "de", **fields}, {"X-Forwarded-For": client}
    url = f"{server.url}/translate_file"
    return httpx.post(url, data=asked, files={"file": (name, content)}, headers=told, timeout=300)


def fetched(server: Server, answer: httpx.Response) -> bytes:
    assert answer.status_code == 200, answer.text
    found = httpx.get(answer.json()["translatedFileUrl"])
    assert found.status_code == 200
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-disposition"].startswith("attachment;")
    return found.content


def test_text(server: Server, translator: Translator) -> None:
    texts = ["the old house", "the young man sees the garden."]
    made = [one.text for one in translator.translate(texts, tags=True)]
    content = "\r\n\r\n".join([*texts, ""]).encode()
    assert fetched(server, sent(server, "letter.txt", content)) == "\r\n\r\n".join([*made, ""]).encode()
    assert fetched(server, sent(server, "letter.txt", content, source="auto")).decode().startswith(made[0])


def test_word(server: Server, translator: Translator) -> None:
    document = docx.Document()
    document.add_heading("the old house")
    paragraph = document.add_paragraph("the young ")
    paragraph.add_run("man").bold = True
    paragraph.add_run(" sees the garden.")
    written = io.BytesIO()
    document.save(written)
    found = docx.Document(io.BytesIO(fetched(server, sent(server, "report.docx", written.getvalue()))))
    assert found.paragraphs[0].text == translator.translate(["the old house"], tags=True)[0].text
    assert found.paragraphs[0].style.name == "Heading 1"  # type: ignore[union-attr]
    assert any(run.bold for run in found.paragraphs[1].runs)


def test_messages(server: Server, translator: Translator) -> None:
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    content = head + 'msgid "the old house"\nmsgstr ""\n\nmsgid "done"\nmsgstr "getan"\n'
    made = translator.translate(["the old house"], tags=True)[0].text
    expected = content.replace('msgstr ""\n\nmsgid "done"', f'msgstr "{made}"\n\nmsgid "done"')
    assert fetched(server, sent(server, "program.po", content.encode())).decode() == expected


def test_many_at_once(server: Server, translator: Translator) -> None:
    text = "the young man sees the garden and the old house."
    made = translator.translate([text], tags=True)[0].text
    content = f"{text}\n".encode() * 120
    with ThreadPoolExecutor(12) as together:
        answers = list(together.map(lambda number: sent(server, f"{number}.txt", content), range(12)))
    assert {fetched(server, answer) for answer in answers} == {f"{made}\n".encode() * 120}


def test_what_is_refused(server: Server) -> None:
    def said(name: str, content: bytes, status: int = 400) -> str:
        answer = sent(server, name, content)
        assert answer.status_code == status, answer.text
        return str(answer.json()["error"])

    assert said("empty.txt", b"") == "Invalid request: empty file"
    assert said("picture.png", b"\x89PNG") == "Invalid request: file format not supported"
    assert said("x.docx", b"not a zip file")
    assert said("large.txt", b"a" * 500_001, 413) == "Invalid request: the file exceeds 500000 bytes"
    missing = httpx.post(f"{server.url}/translate_file", data={"source": "en", "target": "de"})
    assert missing.json() == {"error": "Invalid request: missing file parameter"}
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"<a>" + b" " * 60_000_000 + b"</a>")
    assert len(bomb.getvalue()) < 500_000
    assert said("bomb.docx", bomb.getvalue())
    assert said("long.txt", b"a " * 10_001) == "Invalid request: a text of the file (20001) exceeds text limit (20000)"
    assert sent(server, "x.txt", b"a", target="xx").json() == {"error": "xx is not supported"}


@pytest.mark.parametrize(("name", "made"), [("letter.txt", "letter.de.txt"), ("a.en.txt", "a.de.txt")])
def test_a_translation_is_named_after_its_language(server: Server, name: str, made: str) -> None:
    url = sent(server, name, b"the old house").json()["translatedFileUrl"]
    assert url.endswith(f".{made}")
    assert httpx.get(url).headers["Content-Disposition"] == f'attachment; filename="{made}"'


@pytest.mark.parametrize(("trusted", "way"), [(True, "https"), (False, "http")])
def test_an_address_begins_as_a_proxy_that_is_trusted_was_asked(fluent_run: Run, trusted: bool, way: str) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        fields, headers = {"source": "en", "target": "de"}, {"X-Forwarded-Proto": "https"}
        return await client.post("/translate_file", data=fields, files={"file": ("a.txt", b"house")}, headers=headers)

    answer = ask_in_process(fluent_run.folder, Settings(trust_proxy=trusted), ask)
    assert answer.json()["translatedFileUrl"].startswith(f"{way}://inside/download_file/")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.txt", "..\\..\\x.txt", "/etc/x.txt", "a\r\nb.txt", "<b>.txt", ".txt"]
)
def test_names_that_lead_elsewhere(server: Server, name: str) -> None:
    answer = sent(server, name, b"the old house")
    if answer.status_code == 200:
        url = answer.json()["translatedFileUrl"]
        assert url.startswith(f"{server.url}/download_file/")
        assert url.rpartition("/")[2].count("/") == 0
        assert not set(url) & set("<>\r\n\\")
        assert fetched(server, answer)
    else:
        assert answer.status_code == 400


def test_nobody_guesses_a_file(server: Server) -> None:
    assert httpx.get(f"{server.url}/download_file/00000000-0000-0000-0000-000000000000.letter.txt").status_code == 404
    assert httpx.get(f"{server.url}/download_file/..%2f..%2fetc%2fpasswd").status_code == 404


def test_settings_say_what_is_taken(server: Server, fluent_run: Run) -> None:
    found = httpx.get(f"{server.url}/frontend/settings").json()
    assert found["filesTranslation"] is True
    assert found["supportedFilesFormat"] == list(ENDINGS)
    with start_server(fluent_run.folder, "--no-files") as closed:
        assert httpx.get(f"{closed.url}/frontend/settings").json()["filesTranslation"] is False
        answer = sent(closed, "letter.txt", b"the old house")
        assert (answer.status_code, answer.json()["error"]) == (403, "Files translation are disabled on this server.")


def test_what_one_client_sends_does_not_push_out_what_another_has(fluent_run: Run) -> None:
    with start_server(fluent_run.folder, "--trust-proxy", "--kept-limit", 2_000_000) as server:

        def place(client: str) -> str:
            return str(sent(server, "a.txt", b"-", client=client).json()["translatedFileUrl"])

        places = [place("10.0.0.1"), *[place("10.0.0.2") for _ in range(4)]]
        assert [httpx.get(found).status_code for found in places] == [200, 404, 404, 200, 200]


def test_the_language_of_a_document_is_told_by_its_text(server: Server, translator: Translator) -> None:
    text = "The old house is in the garden."
    made = translator.translate([text], tags=True)[0].text
    german = "Das alte Haus steht im Garten und der junge Mann sieht den Garten. " * 60
    page = f"<!-- {german} --><p class='{german}'>{text}</p>"
    found = fetched(server, sent(server, "page.html", page.encode(), source="auto"))
    assert found.decode() == page.replace(text, html.escape(made, quote=False))
    document = docx.Document()
    document.add_paragraph(text)
    document.core_properties.comments = german[:255]
    written = io.BytesIO()
    document.save(written)
    found = fetched(server, sent(server, "report.docx", written.getvalue(), source="auto"))
    assert docx.Document(io.BytesIO(found)).paragraphs[0].text == made
