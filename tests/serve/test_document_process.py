"""Documents in processes of their own: results, limits of time and memory, cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest
from support.archives import make_zip

from regard.documents import DocumentError, DocumentLimits, translate_document
from regard.serve.engine.documents import (
    Document,
    DocumentPool,
    DocumentProcess,
    ProcessLimits,
    answer_request,
    split_texts,
)
from regard.serve.http.errors import HTTPError

BODY = '<w:p xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:r><w:t>a</w:t></w:r></w:p>'
DOCX = make_zip({"[Content_Types].xml": "<Types/>", "word/document.xml": BODY})


@pytest.fixture
def process() -> Iterator[DocumentProcess]:
    made = DocumentProcess()
    yield made
    made.close()


def double(texts: Sequence[str]) -> list[str]:
    return [f"{text} {text}" for text in texts]


def translate(process: DocumentProcess, name: str, content: bytes) -> bytes:
    return process.translate(Document(name, content), double, lambda warning: None)


def get_id(process: DocumentProcess) -> int:
    assert process.process is not None
    return process.process.pid


def test_document_process_translates_as_the_library_does(process: DocumentProcess) -> None:
    warnings: list[str] = []
    for name, content in {"a.docx": DOCX, "a.html": b"<p>the <b>old</b> dog", "a.txt": b"12\n"}.items():
        assert translate(process, name, content) == translate_document(name, content, double)
    made = process.translate(Document("a.txt", b"one\n"), lambda texts: [""], warnings.append)
    assert made == b"one\n"
    assert warnings == ["a.txt: no translation for 'one', which stays as it is"]


def test_large_documents_are_sent_in_small_messages(process: DocumentProcess) -> None:
    texts = ["слово"] * 1200 + ["а" * 150_000] * 2 + ["б" * 250_000, "в"]
    assert [len(batch) for batch in split_texts(texts)] == [1000, 201, 1, 1, 1]
    assert [text for batch in split_texts(texts) for text in batch] == texts
    content = "\n".join(texts).encode()
    assert translate(process, "a.txt", content) == translate_document("a.txt", content, double)


def test_refused_documents_leave_the_process_ready_for_others(process: DocumentProcess) -> None:
    translate(process, "a.txt", b"one")
    first = get_id(process)
    with pytest.raises(DocumentError, match=r"a\.docx does not match its extension: it is not a zip file"):
        translate(process, "a.docx", b"one")
    with pytest.raises(DocumentError, match=r"a\.txt has 2 tags or lines; the maximum is 1"):
        process.translate(Document("a.txt", b"one\n\n", DocumentLimits(tags=1)), double, lambda warning: None)
    xliff = b'<xliff version="2.0" srcLang="en" trgLang="pt"/>'
    with pytest.raises(DocumentError, match=r"a\.xliff declares pt as its target language, not de"):
        process.translate(Document("a.xliff", xliff, languages=("en", "de")), double, lambda warning: None)
    assert translate(process, "a.txt", b"one") == b"one one"
    assert get_id(process) == first


@pytest.mark.parametrize("error", [HTTPError("too long"), TimeoutError("too long"), EOFError("too long")])
def test_document_whose_translation_fails_is_refused_and_the_next_one_translated(
    process: DocumentProcess, error: Exception
) -> None:
    def fail(texts: Sequence[str]) -> list[str]:
        raise error

    with pytest.raises(type(error), match="too long"):
        process.translate(Document("a.txt", b"one"), fail, lambda warning: None)
    assert translate(process, "a.txt", b"one") == b"one one"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGXCPU, "takes more than 60 seconds of processor time; it is not translated"),
        (signal.SIGKILL, "takes too much memory, or cannot be read: the process that read it has ended with -9"),
    ],
)
def test_document_whose_process_is_killed_is_refused_and_the_next_one_translated(
    process: DocumentProcess, number: signal.Signals, message: str
) -> None:
    def kill(texts: Sequence[str]) -> list[str]:
        os.kill(get_id(process), number)
        return double(texts)

    with pytest.raises(DocumentError, match=f"a.txt {message}"):
        process.translate(Document("a.txt", b"one"), kill, lambda warning: None)
    assert translate(process, "a.txt", b"one") == b"one one"


def test_document_is_finished_if_all_processes_of_the_service_are_told_to_end(process: DocumentProcess) -> None:
    def send_signals(texts: Sequence[str]) -> list[str]:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(get_id(process), number)
        return double(texts)

    process.start()
    send_signals([])  # while it starts
    assert process.translate(Document("a.txt", b"one"), send_signals, lambda warning: None) == b"one one"


def test_document_that_takes_too_much_memory_is_refused(process: DocumentProcess) -> None:
    process.limits = ProcessLimits(memory=150 << 20)
    with pytest.raises(DocumentError, match=r"a\.txt takes too much memory; it is not translated"):
        translate(process, "a.txt", b"a" * 33_000_000)
    process.limits = ProcessLimits()
    assert translate(process, "a.txt", b"one") == b"one one"


def test_process_without_memory_for_a_message_ends_instead_of_leaving_the_service_waiting() -> None:
    class FullConnection(Connection):
        def send_bytes(self, *arguments: object) -> None:
            raise MemoryError

    connection = FullConnection(os.open(os.devnull, os.O_RDWR))
    with connection, pytest.raises(SystemExit):
        answer_request(connection, Document("a.txt", b"one"))


@pytest.mark.slow
def test_document_that_takes_too_much_processor_time_is_refused(process: DocumentProcess) -> None:
    process.limits = ProcessLimits(seconds=0)
    with pytest.raises(DocumentError, match=r"a\.html takes more than 0 seconds of processor time"):
        translate(process, "a.html", b"<p>a</p>" * 100_000)


def test_cancelled_document_ends_its_process_and_frees_its_thread() -> None:
    began, gate = threading.Event(), threading.Event()

    def wait(texts: Sequence[str]) -> list[str]:
        began.set()
        gate.wait()
        raise CancelledError

    async def cancel() -> None:
        pool = DocumentPool(threads=1, queue_size=0)
        task = asyncio.create_task(pool.translate(Document("a.txt", b"one"), wait, print))
        await asyncio.to_thread(began.wait)
        process = pool.processes[0].process
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert process is not None
        assert await asyncio.to_thread(process.wait) == -signal.SIGKILL
        gate.set()
        while pool.busy:
            await asyncio.sleep(0.001)
        assert await pool.translate(Document("a.txt", b"one"), double, print) == b"one one"
        pool.close()

    asyncio.run(cancel())


def test_document_process_imports_neither_torch_nor_the_web_framework() -> None:
    script = "import sys, regard.serve.engine.documents; print({'torch', 'fastapi', 'starlette'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"


def test_documents_are_translated_where_processes_cannot_be_limited() -> None:
    script = """if True:
        import sys
        sys.modules["resource"] = None  # as on Windows
        from regard.serve.engine.documents import Document, DocumentProcess
        process = DocumentProcess()
        made = process.translate(Document("a.txt", b"one"), lambda texts: ["two"], print)
        print(made, process.process)
    """
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "b'two' None\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_process_that_holds_much_memory_is_replaced(process: DocumentProcess) -> None:
    process.limits = ProcessLimits(kept_memory=0)
    assert translate(process, "a.txt", b"one") == b"one one"
    assert process.process is None
    assert translate(process, "a.txt", b"two") == b"two two"
