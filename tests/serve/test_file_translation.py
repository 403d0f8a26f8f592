"""Document translation by the service: formats, downloads, refusals, storage."""

from __future__ import annotations

import asyncio
import html
import io
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docx
import httpx
import pytest
from support.combinations import slow_after
from support.server import Client, ask_in_process, serve_in_thread

from regard.documents.document import DOCUMENT_EXTENSIONS
from regard.documents.tagged_text import strip_placeholder_tags
from regard.runs import Run
from regard.serve.routes import documents
from regard.serve.service import Service
from regard.serve.settings import Settings
from regard.translate import Translation, load
from regard.translate.protected_spans import PreparedTexts


@pytest.fixture(scope="module")
def server(fluent_run: Run) -> Iterator[Client]:
    with serve_in_thread(fluent_run.folder, file_limit=500_000) as server:
        yield server


def translate(run: Run, *texts: str) -> list[str]:
    """Translate texts with markup, without the service."""
    return [made.text for made in load(run.folder).translate(texts, tags=True)]


def upload(server: Client, name: str, content: bytes, client: str = "", **fields: str) -> httpx.Response:
    data, headers = {"source": "en", "target": "de", **fields}, {"X-Forwarded-For": client}
    return server.http.post("/translate_file", data=data, files={"file": (name, content)}, headers=headers)


def download(server: Client, answer: httpx.Response) -> bytes:
    assert answer.status_code == 200, answer.text
    found = server.http.get(answer.json()["translatedFileUrl"])
    assert found.status_code == 200
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-disposition"].startswith("attachment;")
    return found.content


def test_text_document_is_translated_line_by_line(server: Client, fluent_run: Run) -> None:
    texts = ["the old house", "the young man sees the garden."]
    made = translate(fluent_run, *texts)
    content = "\r\n\r\n".join([*texts, ""]).encode()
    assert download(server, upload(server, "letter.txt", content)) == "\r\n\r\n".join([*made, ""]).encode()
    assert download(server, upload(server, "letter.txt", content, source="auto")).decode().startswith(made[0])


def test_text_without_translation_stays_and_is_named_in_the_answer(
    server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        PreparedTexts, "restore_texts", lambda draft, made: [Translation("x", "") for _ in draft.protected_texts]
    )
    answer = upload(server, "letter.txt", b"the old house\n")
    assert download(server, answer) == b"the old house\n"
    assert answer.json()["warnings"] == ["letter.txt: no translation for 'the old house', which stays as it is"]


@pytest.mark.slow
def test_other_requests_are_answered_while_a_long_document_needs_no_model(
    fluent_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns_of_loop, turns_at_translation = 0, list[int]()

    async def translate_at_once(service: Service, texts: Sequence[str], *arguments: Any) -> list[Translation]:
        turns_at_translation.append(turns_of_loop)
        return [Translation(text, text) for text in texts]

    async def count_turns() -> None:
        nonlocal turns_of_loop
        while True:
            turns_of_loop += 1
            await asyncio.sleep(0)

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        counting = asyncio.create_task(count_turns())
        content, data = b"the old house\n" * 5 * documents.TEXTS_AT_ONCE, {"source": "en", "target": "de"}
        answer = await client.post("/translate_file", data=data, files={"file": ("a.txt", content)})
        counting.cancel()
        return answer

    monkeypatch.setattr(Service, "translate", translate_at_once)
    assert ask_in_process(fluent_run.folder, Settings(), ask).status_code == 200
    assert len(set(turns_at_translation)) == 5


def test_word_document_keeps_styles_and_runs(server: Client, fluent_run: Run) -> None:
    document = docx.Document()
    document.add_heading("the old house")
    paragraph = document.add_paragraph("the young ")
    paragraph.add_run("man").bold = True
    paragraph.add_run(" sees the garden.")
    written = io.BytesIO()
    document.save(written)
    found = docx.Document(io.BytesIO(download(server, upload(server, "report.docx", written.getvalue()))))
    assert [found.paragraphs[0].text] == translate(fluent_run, "the old house")
    assert found.paragraphs[0].style.name == "Heading 1"  # type: ignore[union-attr]
    assert any(run.bold for run in found.paragraphs[1].runs)


def test_po_file_gets_its_missing_translations(server: Client, fluent_run: Run) -> None:
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    content = head + 'msgid "the old house"\nmsgstr ""\n\nmsgid "done"\nmsgstr "getan"\n'
    (made,) = translate(fluent_run, "the old house")
    expected = content.replace('msgstr ""\n\nmsgid "done"', f'msgstr "{made}"\n\nmsgid "done"')
    assert download(server, upload(server, "program.po", content.encode())).decode() == expected


@pytest.mark.parametrize(("files", "lines"), [(3, 8), pytest.param(12, 120, marks=pytest.mark.slow)])
def test_concurrent_documents_get_their_own_translations(
    server: Client, fluent_run: Run, files: int, lines: int
) -> None:
    text = "the young man sees the garden and the old house"
    sentences = [f"{text} {number} ." for number in range(files)]
    expected = translate(fluent_run, *sentences)

    def translate_file(number: int) -> bytes:
        return download(server, upload(server, f"{number}.txt", f"{sentences[number]}\n".encode() * lines))

    with ThreadPoolExecutor(files) as pool:
        found = list(pool.map(translate_file, range(files)))
    assert found == [f"{made}\n".encode() * lines for made in expected]


def test_unsuitable_files_are_refused_with_a_reason(server: Client) -> None:
    def refusal(name: str, content: bytes, status: int = 400) -> str:
        answer = upload(server, name, content)
        assert answer.status_code == status, answer.text
        return str(answer.json()["error"])

    assert refusal("empty.txt", b"") == "Invalid request: empty file"
    assert refusal("picture.png", b"\x89PNG") == "Invalid request: file format not supported"
    assert refusal("x.docx", b"not a zip file")
    assert refusal("x.xliff", b"<a/>").startswith("x.xliff does not match its extension")
    assert refusal("large.txt", b"a" * 500_001, 413) == "Invalid request: the file exceeds 500000 bytes"
    missing = server.http.post("/translate_file", data={"source": "en", "target": "de"})
    assert missing.json() == {"error": "Invalid request: missing file parameter"}
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"<a>" + b" " * 60_000_000 + b"</a>")
    assert len(bomb.getvalue()) < 500_000
    assert refusal("bomb.docx", bomb.getvalue())
    message = "Invalid request: a text of the file with entities and numbered tags ({}) exceeds text limit (20000)"
    assert refusal("long.txt", b"a " * 10_001) == message.format(20_001)
    assert refusal("tags.html", b"<b>x</b>" * 2_000) == message.format(29_786)
    assert upload(server, "x.txt", b"a", target="xx").json() == {"error": "xx is not supported"}


@pytest.mark.parametrize(
    ("source", "paragraphs", "stripped"),
    slow_after(0, [("auto", 1, 0), ("en", 1, 0), ("en", 60, 0), ("auto", 240, 510_000)]),
)
def test_entities_of_a_large_file_are_not_unescaped_without_need(
    fluent_run: Run, monkeypatch: pytest.MonkeyPatch, source: str, paragraphs: int, stripped: int
) -> None:
    lengths: list[int] = []

    def strip(text: str) -> str:
        lengths.append(len(text))
        return strip_placeholder_tags(text)

    async def translate(service: Service, texts: Sequence[str], *arguments: object) -> list[Translation]:
        return [Translation(text, text) for text in texts]

    monkeypatch.setattr("regard.serve.routes.documents.strip_placeholder_tags", strip)
    monkeypatch.setattr(Service, "translate", translate)
    content = (b"<p>the old house" + b"&amp;" * (239_000 // paragraphs) + b"</p>") * paragraphs

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        fields = {"source": source, "target": "de"}
        return await client.post("/translate_file", data=fields, files={"file": ("a.html", content)})

    answer = ask_in_process(fluent_run.folder, Settings(), ask)
    assert answer.status_code == (400 if paragraphs == 1 else 200)
    assert sum(lengths) <= stripped


def test_xliff_that_states_other_languages_than_the_request_is_refused(server: Client) -> None:
    def ask(stated: str, source: str = "en") -> httpx.Response:
        return upload(server, "x.xliff", f'<xliff version="2.0" {stated}><file/></xliff>'.encode(), source=source)

    french = ask('srcLang="en-US" trgLang="fr"')
    assert french.status_code == 400
    assert french.json() == {"error": "x.xliff declares fr as its target language, not de"}
    assert ask('srcLang="fr" trgLang="de"').status_code == 400
    assert ask('trgLang="fr"', source="auto").status_code == 400
    assert ask('srcLang="en-US" trgLang="de-AT"').status_code == 200
    assert ask('srcLang="fr" trgLang="de"', source="auto").status_code == 200


@pytest.mark.parametrize(("name", "made"), [("letter.txt", "letter.de.txt"), ("a.en.txt", "a.de.txt")])
def test_translated_file_is_named_after_its_language(server: Client, name: str, made: str) -> None:
    url = upload(server, name, b"the old house").json()["translatedFileUrl"]
    assert url.endswith(f".{made}")
    assert server.http.get(url).headers["Content-Disposition"] == f'attachment; filename="{made}"'


@pytest.mark.parametrize(("trusted", "scheme"), slow_after(1, [(True, "https"), (False, "http")]))
def test_download_url_has_the_scheme_of_a_trusted_proxy(fluent_run: Run, trusted: bool, scheme: str) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        fields, headers = {"source": "en", "target": "de"}, {"X-Forwarded-Proto": "https"}
        return await client.post("/translate_file", data=fields, files={"file": ("a.txt", b"house")}, headers=headers)

    answer = ask_in_process(fluent_run.folder, Settings(trust_proxy=trusted), ask)
    assert answer.json()["translatedFileUrl"].startswith(f"{scheme}://inside/download_file/")


@pytest.mark.parametrize(
    ("settings", "host", "expected"),
    slow_after(
        2,
        [
            ({}, "translate.example", "http://translate.example/download_file/"),
            ({}, "localhost:8080", "http://localhost:8080/download_file/"),
            ({}, "[::1]:8080", "http://[::1]:8080/download_file/"),
            ({"trust_proxy": True}, "translate.example", "http://translate.example/download_file/"),
            ({"public_url": "https://a.example/tr/"}, "b.example", "https://a.example/tr/download_file/"),
            ({"url_prefix": "/tr"}, "b.example", "http://b.example/tr/download_file/"),
        ],
    ),
)
def test_download_url_has_the_host_that_was_asked(
    fluent_run: Run, settings: dict[str, Any], host: str, expected: str
) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        path = f"{settings.get('url_prefix', '')}/translate_file"
        fields, file = {"source": "en", "target": "de"}, {"file": ("a.txt", b"-")}
        return await client.post(path, data=fields, files=file, headers={"Host": host})

    url = ask_in_process(fluent_run.folder, Settings(**settings), ask).json()["translatedFileUrl"]
    assert url.startswith(expected)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.txt", "..\\..\\x.txt", "/etc/x.txt", "a\r\nb.txt", "<b>.txt", ".txt"]
)
def test_hostile_file_names_do_not_leave_the_download_folder(server: Client, name: str) -> None:
    answer = upload(server, name, b"the old house")
    if answer.status_code == 200:
        url = answer.json()["translatedFileUrl"]
        assert url.startswith(f"{server.url}/download_file/")
        assert url.rpartition("/")[2].count("/") == 0
        assert not set(url) & set("<>\r\n\\")
        assert download(server, answer)
    else:
        assert answer.status_code == 400


def test_uploaded_file_is_closed_when_its_request_is_refused(fluent_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[Any] = []

    def make(**options: Any) -> Any:
        files.append(tempfile.SpooledTemporaryFile(**options))  # noqa: SIM115 - the service closes it
        return files[-1]

    monkeypatch.setattr("starlette.formparsers.SpooledTemporaryFile", make)

    async def ask(client: httpx.AsyncClient) -> list[int]:
        file = {"file": ("a.txt", b"house")}
        paths = ("/translate_file", "/translate", "/v1/trace")
        return [(await client.post(path, data={"target": "xx"}, files=file)).status_code for path in paths]

    assert ask_in_process(fluent_run.folder, Settings(), ask) == [400] * 3
    assert [file.closed for file in files] == [True] * 3


def test_characters_of_a_document_count_as_requests(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder, req_limit=5) as server:
        statuses = [upload(server, "a.txt", b"houses\n\n" * lines).status_code for lines in (166, 400, 400, 1)]
        assert statuses == [200, 200, 429, 429]  # 1 and 3; a refused one counts as 1, for it was read
        assert upload(server, "a.txt", b"house").json() == {"error": "Slowdown: 5 per 1 minute"}


def test_document_that_costs_more_than_the_limit_takes_all_of_it(fluent_run: Run) -> None:
    async def ask(client: httpx.AsyncClient) -> list[int]:
        fields, file = {"source": "de", "target": "de"}, {"file": ("a.txt", b"Haus " * 700)}  # 4 requests
        return [(await client.post("/translate_file", data=fields, files=file)).status_code for _ in range(2)]

    assert ask_in_process(fluent_run.folder, Settings(req_limit=2, hourly_req_limit=3), ask) == [200, 429]


def test_unknown_downloads_are_not_found(server: Client) -> None:
    assert server.http.get("/download_file/00000000-0000-0000-0000-000000000000.letter.txt").status_code == 404
    assert server.http.get("/download_file/..%2f..%2fetc%2fpasswd").status_code == 404


def test_settings_list_the_document_formats(server: Client, fluent_run: Run) -> None:
    found = server.http.get("/frontend/settings").json()
    assert found["filesTranslation"] is True
    assert found["supportedFilesFormat"] == list(DOCUMENT_EXTENSIONS)
    with serve_in_thread(fluent_run.folder, files=False) as closed:
        assert closed.http.get("/frontend/settings").json()["filesTranslation"] is False
        answer = upload(closed, "letter.txt", b"the old house")
        assert (answer.status_code, answer.json()["error"]) == (403, "Files translation are disabled on this server.")


def test_files_of_one_client_do_not_displace_those_of_another(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder, trust_proxy=True, kept_limit=2_000_000) as server:

        def upload_from(client: str) -> str:
            return str(upload(server, "a.txt", b"-", client=client).json()["translatedFileUrl"])

        urls = [upload_from("10.0.0.1"), *[upload_from("10.0.0.2") for _ in range(4)]]
        assert [server.http.get(url).status_code for url in urls] == [200, 404, 404, 200, 200]


def test_document_language_is_detected_from_its_text_alone(server: Client, fluent_run: Run) -> None:
    text = "The old house is in the garden."
    (made,) = translate(fluent_run, text)
    german = "Das alte Haus steht im Garten und der junge Mann sieht den Garten. " * 60
    page = f"<!-- {german} --><p class='{german}'>{text}</p>"
    found = download(server, upload(server, "page.html", page.encode(), source="auto"))
    assert found.decode() == page.replace(text, html.escape(made, quote=False))
    document = docx.Document()
    document.add_paragraph(text)
    document.core_properties.comments = german[:255]
    written = io.BytesIO()
    document.save(written)
    found = download(server, upload(server, "report.docx", written.getvalue(), source="auto"))
    assert docx.Document(io.BytesIO(found)).paragraphs[0].text == made
