"""Documents in processes of their own: results, limits of time and memory, cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe

import pytest
from support.archives import make_zip
from support.combinations import slow_after

from regard.documents import DocumentError, DocumentLimits, translate_document
from regard.serve.engine import documents
from regard.serve.engine.documents import (
    Document,
    DocumentPool,
    DocumentProcess,
    DocumentResult,
    ProcessLimits,
    run_document_process,
    translate_in_process,
)
from regard.serve.errors import HTTPError, OverloadedError

BODY = '<w:p xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:r><w:t>a</w:t></w:r></w:p>'
DOCX = make_zip({"[Content_Types].xml": "<Types/>", "word/document.xml": BODY})


@pytest.fixture
def pool() -> Iterator[DocumentPool]:
    made = DocumentPool(processes=1, queue_size=0)
    yield made
    made.close()


def double(texts: Sequence[str]) -> list[str]:
    return [f"{text} {text}" for text in texts]


def translate_documents(
    pool: DocumentPool,
    *documents: Document,
    translate: Callable[[Sequence[str]], list[str]] = double,
    warn: Callable[[str], None] = lambda warning: None,
) -> list[bytes]:
    async def translate_texts(texts: Sequence[str]) -> list[str]:
        return translate(texts)

    async def translate_all() -> list[bytes]:
        return [await pool.translate(document, translate_texts, warn) for document in documents]

    return asyncio.run(translate_all())


def translate(pool: DocumentPool, name: str, content: bytes) -> bytes:
    (made,) = translate_documents(pool, Document(name, content))
    return made


def wait_for_end(process: DocumentProcess) -> int | None:
    while process.process.exitcode is None:  # join returns early if another thread, as that of the pipe, waits as well
        process.process.join()
    return process.process.exitcode


def get_id(pool: DocumentPool) -> int:
    """Return the id of the process that translates the next document."""
    if not pool.idle:
        translate(pool, "a.txt", b"one")
    assert pool.idle[0].process.pid is not None
    return pool.idle[0].process.pid


def test_document_process_translates_as_the_library_does(pool: DocumentPool) -> None:
    warnings: list[str] = []
    for name, content in {
        "a.docx": DOCX,
        "a.html": b"<p>the <b>old</b> dog",
        "a.txt": b"12\n",
        "b.txt": b"warnings",
    }.items():
        assert translate(pool, name, content) == translate_document(name, content, double)
    made = translate_documents(pool, Document("a.txt", b"one\n"), translate=lambda texts: [""], warn=warnings.append)
    assert made == [b"one\n"]
    assert warnings == ["a.txt: no translation for 'one', which stays as it is"]


def test_large_documents_pass_the_pipe(pool: DocumentPool) -> None:
    content = "\n".join(["слово"] * 1200 + ["а" * 150_000] * 2).encode()
    assert translate(pool, "a.txt", content) == translate_document("a.txt", content, double)


def test_refused_documents_leave_the_process_ready_for_others(pool: DocumentPool) -> None:
    translate(pool, "a.txt", b"one")
    first = get_id(pool)
    with pytest.raises(DocumentError, match=r"a\.docx does not match its extension: it is not a zip file"):
        translate(pool, "a.docx", b"one")
    with pytest.raises(DocumentError, match=r"a\.txt has 2 tags or lines; the maximum is 1"):
        translate_documents(pool, Document("a.txt", b"one\n\n", DocumentLimits(tags=1)))
    xliff = b'<xliff version="2.0" srcLang="en" trgLang="pt"/>'
    with pytest.raises(DocumentError, match=r"a\.xliff declares pt as its target language, not de"):
        translate_documents(pool, Document("a.xliff", xliff, languages=("en", "de")))
    assert translate(pool, "a.txt", b"one") == b"one one"
    assert get_id(pool) == first


@pytest.mark.parametrize(
    "error", slow_after(1, [HTTPError("too long"), TimeoutError("too long"), EOFError("too long")])
)
def test_document_whose_translation_fails_is_refused_and_the_next_one_translated(
    pool: DocumentPool, error: Exception
) -> None:
    def fail(texts: Sequence[str]) -> list[str]:
        raise error

    with pytest.raises(type(error), match="too long"):
        translate_documents(pool, Document("a.txt", b"one"), translate=fail)
    assert translate(pool, "a.txt", b"one") == b"one one"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGXCPU, "takes more than 60 seconds of processor time; it is not translated"),
        (signal.SIGKILL, "takes too much memory, or cannot be read: the process that read it has ended with -9"),
    ],
)
def test_document_whose_process_is_killed_is_refused_and_the_next_one_translated(
    pool: DocumentPool, number: signal.Signals, message: str
) -> None:
    process_id = get_id(pool)

    def kill(texts: Sequence[str]) -> list[str]:
        os.kill(process_id, number)
        return double(texts)

    with pytest.raises(DocumentError, match=f"a.txt {message}"):
        translate_documents(pool, Document("a.txt", b"one"), translate=kill)
    assert translate(pool, "a.txt", b"one") == b"one one"


@pytest.mark.slow
def test_document_is_finished_if_all_processes_of_the_service_are_told_to_end(pool: DocumentPool) -> None:
    process_id = get_id(pool)

    def send_signals(texts: Sequence[str]) -> list[str]:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process_id, number)
        return double(texts)

    assert translate_documents(pool, Document("a.txt", b"one"), translate=send_signals) == [b"one one"]
    assert get_id(pool) == process_id


@pytest.mark.slow
def test_document_that_takes_too_much_memory_is_refused(pool: DocumentPool) -> None:
    pool.limits = ProcessLimits(memory=150 << 20)
    with pytest.raises(DocumentError, match=r"a\.txt takes too much memory; it is not translated"):
        translate(pool, "a.txt", b"a" * 33_000_000)
    assert translate(pool, "a.txt", b"one") == b"one one"


def test_process_without_memory_for_a_message_is_not_used_again() -> None:
    class FullConnection(Connection):
        def send(self, obj: object) -> None:
            raise MemoryError

    with FullConnection(os.open(os.devnull, os.O_RDWR)) as connection:
        result = translate_in_process(connection, Document("a.txt", b"one"))
    assert result == DocumentResult(error="a.txt takes too much memory; it is not translated", is_last=True)


@pytest.mark.slow
def test_document_that_takes_too_much_processor_time_is_refused(pool: DocumentPool) -> None:
    pool.limits = ProcessLimits(seconds=0)
    with pytest.raises(DocumentError, match=r"a\.html takes more than 0 seconds of processor time"):
        translate(pool, "a.html", b"<p>a</p>" * 100_000)


def test_cancelled_document_ends_its_process(pool: DocumentPool) -> None:
    async def cancel() -> None:
        began = asyncio.Event()

        async def wait(texts: Sequence[str]) -> list[str]:
            began.set()
            await asyncio.Event().wait()
            return []

        task = asyncio.create_task(pool.translate(Document("a.txt", b"one"), wait, print))
        await began.wait()
        with pytest.raises(OverloadedError, match="1 documents are translated or wait already"):
            await pool.translate(Document("a.txt", b"one"), wait, print)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(wait_for_end, process) == -signal.SIGKILL
        assert (pool.slots.locked(), pool.idle) == (False, [])

    get_id(pool)
    (process,) = pool.idle
    asyncio.run(cancel())
    assert translate(pool, "a.txt", b"one") == b"one one"


def test_document_is_cancelled_while_its_process_parses_it(pool: DocumentPool) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(pool.translate(Document("a.html", b"<p>a</p>" * 100_000), translate_nothing, print))
        await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(wait_for_end, process) == -signal.SIGKILL

    async def translate_nothing(texts: Sequence[str]) -> list[str]:
        raise AssertionError(texts)

    get_id(pool)
    (process,) = pool.idle
    asyncio.run(cancel())


def test_document_process_imports_neither_torch_nor_the_web_framework() -> None:
    script = "import sys, regard.serve.engine.documents; print({'torch', 'fastapi', 'starlette'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"


def test_documents_are_translated_where_processes_cannot_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "resource", None)  # as on Windows
    monkeypatch.setattr(documents, "_get_memory", lambda: 0)
    ours, theirs = Pipe()
    thread = threading.Thread(target=run_document_process, args=(theirs, ProcessLimits()), daemon=True)
    monkeypatch.setattr(documents, "ignore_signals", lambda: None)  # only the main thread could
    thread.start()
    ours.send(Document("a.txt", b"one"))
    assert ours.recv() == ["one"]
    ours.send(["two"])
    assert ours.recv() == DocumentResult(b"two", [])
    ours.close()
    thread.join()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_process_that_holds_much_memory_is_replaced(pool: DocumentPool) -> None:
    pool.limits = ProcessLimits(kept_memory=0)
    assert translate(pool, "a.txt", b"one") == b"one one"
    assert not pool.idle
    assert translate(pool, "a.txt", b"two") == b"two two"
