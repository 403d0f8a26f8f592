"""`regard data get`: downloads from a local HTTP server that fails in many ways, unpacking, and the catalogue."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.base import Dataset
from support.archives import make_zip
from support.commands import Command
from typer.testing import CliRunner

from regard.cli.app import app
from regard.corpus.download import MAX_ATTEMPTS, download_file, unpack_members
from regard.corpus.public_corpora import (
    PUBLIC_CORPORA,
    UNAVAILABLE_FOLDERS,
    PublicCorpus,
    drop_tag_lines,
    extract_segments,
    find_test_set,
    list_experiment_corpora,
)
from regard.data.readers.dispatch import find_format_suffix, parse_languages_from_name
from regard.errors import UserError
from regard.reproduce.corpora import find_data_file, prepare_corpus

CONTENT = b"".join(f"line {number}\n".encode() for number in range(30_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """Files and faults of the local server, and the requests it received."""

    files: dict[str, bytes] = field(default_factory=lambda: {"/x.txt": CONTENT})
    etag: str | None = '"one"'
    modified: str | None = None
    ranges: bool = True
    wrong_start: bool = False
    honest_length: bool = True
    break_after: list[int] = field(default_factory=list)  # bytes after which the next connections are closed
    status: list[int] = field(default_factory=list)  # status codes of the next requests
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range header
    address: str = ""


def make_handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            range_header = self.headers.get("Range")
            site.requests.append((self.path, range_header))
            if site.status and (status := site.status.pop(0)) != 200:
                self.send_error(status)
                return
            if self.path not in site.files:
                self.send_error(404)
                return
            content, start = site.files[self.path], 0
            condition = self.headers.get("If-Range")
            if range_header and site.ranges and condition in (None, site.etag, site.modified):
                start = int(range_header.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    self.send_error(416)
                    return
            self.send_response(206 if start else 200)
            if start:
                start -= site.wrong_start
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if site.honest_length:
                self.send_header("Content-Length", str(len(content) - start))
            if site.etag:
                self.send_header("ETag", site.etag)
            if site.modified:
                self.send_header("Last-Modified", site.modified)
            self.end_headers()
            rest = content[start:]
            self.wfile.write(rest[: site.break_after.pop(0)] if site.break_after else rest)
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Run the server in a thread."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Site()
    with ThreadingHTTPServer(("127.0.0.1", 0), make_handler(made)) as server:
        made.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # seconds that shutdown() waits
        thread.start()
        yield made
        server.shutdown()
        thread.join()


class PauseRecorder:
    """Records the pauses between attempts instead of sleeping."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def fetch_content(site: Site, folder: Path, **options: Any) -> bytes:
    """Download a file and return its content; only its checksum is stored beside it."""
    fetched = download_file(f"{site.address}/x.txt", folder / "x.txt", sleep=PauseRecorder(), **options)
    assert {path.name for path in folder.iterdir()} == {"x.txt", "x.txt.sha256"}
    assert (folder / "x.txt.sha256").read_text() == f"{fetched.sha256}  x.txt\n"
    return (folder / "x.txt").read_bytes()


def fetch_error(site: Site, folder: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        download_file(f"{site.address}/x.txt", folder / "x.txt", sleep=PauseRecorder(), **options)
    assert not (folder / "x.txt").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_file_is_downloaded_once_with_progress(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    assert (
        fetch_content(site, tmp_path, sha256=SHA256, progress=lambda done, total: seen.append((done, total))) == CONTENT
    )
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)
    assert fetch_content(site, tmp_path, sha256=SHA256) == CONTENT
    assert site.requests == [("/x.txt", None)], "a complete file was downloaded again"


@pytest.mark.parametrize(
    ("etag", "modified"),
    [('"one"', None), (None, "Sat, 01 Jan 2022 00:00:00 GMT"), (None, None)],
    ids=["etag", "last-modified", "neither"],
)
def test_broken_connection_is_resumed_by_range_request(
    etag: str | None, modified: str | None, site: Site, tmp_path: Path
) -> None:
    site.etag, site.modified, site.break_after = etag, modified, [100_000, 50_000]
    assert fetch_content(site, tmp_path, sha256=SHA256) == CONTENT
    assert [range_header for _, range_header in site.requests] == [None, "bytes=100000-", "bytes=150000-"]


def test_later_run_resumes_a_partial_download(site: Site, tmp_path: Path) -> None:
    site.break_after = [1000] * MAX_ATTEMPTS
    message = fetch_error(site, tmp_path, sha256=SHA256)
    assert f"the connection broke after 5,000 of {len(CONTENT):,} bytes, 5 times over" in message
    assert "run the command again to resume the download" in message
    assert (tmp_path / "x.txt.part").read_bytes() == CONTENT[:5000]
    assert fetch_content(site, tmp_path, sha256=SHA256) == CONTENT
    assert site.requests[-1] == ("/x.txt", "bytes=5000-")


def test_server_without_range_support_restarts_the_download(site: Site, tmp_path: Path) -> None:
    site.ranges, site.break_after = False, [100_000]
    assert fetch_content(site, tmp_path, sha256=SHA256) == CONTENT
    assert [range_header for _, range_header in site.requests] == [None, "bytes=100000-"]


@pytest.mark.parametrize("etag", ['"one"', None, 'W/"one"'])
def test_file_changed_on_the_server_is_downloaded_from_the_start(etag: str | None, site: Site, tmp_path: Path) -> None:
    site.etag, site.break_after = etag, [100_000] * MAX_ATTEMPTS
    site.ranges = False
    fetch_error(site, tmp_path)
    site.ranges = True
    site.files["/x.txt"] = CONTENT.upper() + b"more"
    site.etag = '"two"' if etag == '"one"' else etag
    assert fetch_content(site, tmp_path) == CONTENT.upper() + b"more"


def test_file_that_became_shorter_is_downloaded_from_the_start(site: Site, tmp_path: Path) -> None:
    site.etag, site.break_after = None, [100_000] * MAX_ATTEMPTS
    site.ranges = False
    fetch_error(site, tmp_path)
    site.ranges = True
    site.files["/x.txt"] = b"short"
    assert fetch_content(site, tmp_path) == b"short"


def test_wrong_range_from_the_server_restarts_the_download(site: Site, tmp_path: Path) -> None:
    site.wrong_start, site.break_after = True, [1000]
    assert fetch_content(site, tmp_path, sha256=SHA256) == CONTENT
    assert [range_header for _, range_header in site.requests] == [None, "bytes=1000-", None]


def test_missing_content_length_is_accepted(site: Site, tmp_path: Path) -> None:
    site.honest_length = False
    assert fetch_content(site, tmp_path, sha256=SHA256) == CONTENT


def test_wrong_checksum_is_refused_and_nothing_kept(site: Site, tmp_path: Path) -> None:
    message = fetch_error(site, tmp_path, sha256="0" * 64)
    assert f"has the SHA-256 checksum {SHA256} and should have {'0' * 64}; it was not kept" in message
    assert list(tmp_path.iterdir()) == []


def test_first_checksum_is_recorded_and_required_later(site: Site, tmp_path: Path) -> None:
    first = download_file(f"{site.address}/x.txt", tmp_path / "x.txt", sleep=PauseRecorder())
    assert (first.sha256, first.had_known_checksum) == (SHA256, False)
    assert download_file(f"{site.address}/x.txt", tmp_path / "x.txt", sleep=PauseRecorder()).had_known_checksum
    (tmp_path / "x.txt").unlink()
    site.files["/x.txt"] = b"another"
    assert f"should have {SHA256}" in fetch_error(site, tmp_path)
    (tmp_path / "x.txt.sha256").write_text("nonsense\n")
    assert "holds no SHA-256 checksum" in fetch_error(site, tmp_path)


def test_locally_changed_file_is_refused(site: Site, tmp_path: Path) -> None:
    fetch_content(site, tmp_path)
    (tmp_path / "x.txt").write_bytes(b"changed")
    with pytest.raises(UserError, match="remove it and fetch it again"):
        download_file(f"{site.address}/x.txt", tmp_path / "x.txt")


def test_http_404_is_not_retried(site: Site, tmp_path: Path) -> None:
    site.files.clear()
    message = fetch_error(site, tmp_path)
    assert message.startswith(f"{site.address}/x.txt: the server answers 404 (Not Found);")
    assert len(site.requests) == 1


def test_http_server_errors_are_retried_with_backoff(site: Site, tmp_path: Path) -> None:
    site.status = [503, 429, 500]
    pauses = PauseRecorder()
    download_file(f"{site.address}/x.txt", tmp_path / "x.txt", SHA256, sleep=pauses)
    assert pauses.seconds == [1.0, 2.0, 4.0]
    (tmp_path / "x.txt").unlink()
    site.status = [503] * MAX_ATTEMPTS
    assert "the server answers 503 (Service Unavailable), 5 times over" in fetch_error(site, tmp_path)


def test_failed_download_leaves_no_folder(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        download_file(f"{site.address}/nothing", tmp_path / "corpus" / "downloads" / "nothing")
    assert not list(tmp_path.iterdir())


def test_unreachable_server_and_unsupported_url_are_refused(tmp_path: Path, site: Site) -> None:
    site.address = "http://127.0.0.1:1"
    assert "cannot be reached" in fetch_error(site, tmp_path)
    for address in ("file:///etc/passwd", "ftp://x.org/y", "x"):
        with pytest.raises(UserError, match="is not a web address"):
            download_file(address, tmp_path / "x.txt")


# Archives


def make_tgz(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            file.addfile(info)
    return out.getvalue()


ARCHIVES: dict[str, Callable[[dict[str, bytes]], bytes]] = {"x.tgz": make_tgz, "x.zip": make_zip}


def unpack_member(folder: Path, name: str, content: bytes, member: str = "a.txt", limit: int | None = None) -> bytes:
    archive, out = folder / name, folder / "out" / "mine.txt"
    archive.write_bytes(content)
    unpack_members(archive, {member: (out, iter)}, limit)
    return out.read_bytes()


@pytest.mark.parametrize("name", ARCHIVES)
def test_archive_member_is_found_in_any_folder(name: str, tmp_path: Path) -> None:
    assert unpack_member(tmp_path, name, ARCHIVES[name]({"b.txt": b"b", "./deep/er/a.txt": b"a\nb"})) == b"a\nb"
    assert {path.name for path in tmp_path.rglob("*")} == {name, "out", "mine.txt"}
    with pytest.raises(UserError, match=r"holds no file a.txt; it has b.txt"):
        unpack_member(tmp_path, name, ARCHIVES[name]({"b.txt": b"b"}))


def test_gz_file_is_unpacked_as_one_member(tmp_path: Path) -> None:
    assert unpack_member(tmp_path, "a.txt.gz", gzip.compress(b"a\nb\n")) == b"a\nb\n"


@pytest.mark.parametrize("evil", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "..\\evil.txt", "C:\\evil.txt"])
@pytest.mark.parametrize("name", ARCHIVES)
def test_archive_with_path_traversal_is_refused(name: str, evil: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    with pytest.raises(UserError, match=r"which leads out of its folder; nothing was unpacked"):
        unpack_member(folder, name, ARCHIVES[name]({"a.txt": b"a", evil: b"evil"}))
    assert {path.name for path in tmp_path.rglob("*")} == {"inner", name}


def test_symbolic_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no file a\.txt"):
        unpack_member(tmp_path, "x.tgz", make_tgz({"b.txt": b"b"}, {"a.txt": "/etc/passwd"}))


@pytest.mark.parametrize("name", [*ARCHIVES, "a.txt.gz"])
def test_archive_over_the_size_limit_is_refused(name: str, tmp_path: Path) -> None:
    content = ARCHIVES[name]({"a.txt": bytes(3_000_000)}) if name in ARCHIVES else gzip.compress(bytes(3_000_000))
    with pytest.raises(UserError, match="unpacks to more than 2,000,000 bytes"):
        unpack_member(tmp_path, name, content, limit=2_000_000)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", [*ARCHIVES, "a.txt.gz"])
def test_damaged_archive_is_refused(name: str, tmp_path: Path) -> None:
    content = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(200))
    whole = ARCHIVES[name]({"a.txt": content}) if name in ARCHIVES else gzip.compress(content)
    for damaged in (whole[: len(whole) // 2], b"no archive", whole[:60] + bytes(80) + whole[140:]):
        with pytest.raises(UserError, match="is damaged, it cannot be unpacked"):
            unpack_member(tmp_path, name, damaged)


# The catalogue and the command


def test_markup_of_ted_talks_is_removed() -> None:
    tagged = b"<url>http://x</url>\n<title>A title</title>\n A sentence . \n<speaker>S</speaker>\nMore .\n"
    assert b"".join(drop_tag_lines(iter(tagged.splitlines(keepends=True)))) == b"A sentence .\nMore .\n"
    xml = b'<doc>\n<title>t</title>\n<seg id="1"> Tom &amp; Ana . </seg>\n<seg id="2">Z\xc3\xbcge</seg>\n</doc>\n'
    assert b"".join(extract_segments(iter(xml.splitlines(keepends=True)))) == "Tom & Ana .\nZüge\n".encode()


@pytest.mark.parametrize("name", PUBLIC_CORPORA)
def test_catalogue_entry_is_complete(name: str) -> None:
    corpus = PUBLIC_CORPORA[name]
    assert corpus.description
    assert corpus.licence
    assert corpus.size
    files = corpus.list_files()
    assert len(files) == len(set(files))
    assert all(re.fullmatch(r"[a-z0-9]+\.[a-z]{2}|[a-z]{2}-[a-z]{2}\.tsv", file) for file in files), files
    source, target = name.split("-")[-2:]
    for file in map(Path, files):
        assert (
            parse_languages_from_name(file) == (source, target)
            if find_format_suffix(file) == ".tsv"
            else find_format_suffix(file)[1:] in (source, target)
        )
    for download in corpus.remote_files:
        assert download.url.startswith("https://")
        assert download.sha256 is None or re.fullmatch("[0-9a-f]{64}", download.sha256)


def serve_corpus(site: Site, corpus: PublicCorpus, folder: str = "/mirror") -> None:
    """Serve every file of a corpus, compressed as its name says."""
    for download in corpus.remote_files:
        file = download.url.rsplit("/", 1)[-1]
        inside = {member: f"{member} 1\n{member} 2\n".encode() for member in download.members}
        packer = make_tgz if file.endswith(".tgz") else make_zip if file.endswith(".zip") else None
        site.files[f"{folder}/{file}"] = (
            packer(inside) if packer else gzip.compress(next(iter(inside.values())), mtime=0)
        )


def test_get_downloads_corpus_and_checks_it_against_first_checksum(regard: Command, site: Site, tmp_path: Path) -> None:
    serve_corpus(site, PUBLIC_CORPORA["europarl-v7-de-en"])
    done = regard("data", "get", "europarl-v7-de-en", "--trust", "--from", f"{site.address}/mirror/", "--out", "ep")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ep/train.de", "ep/train.en"]
    assert (tmp_path / "ep/train.de").read_text() == "europarl-v7.de-en.de 1\neuroparl-v7.de-en.de 2\n"
    assert "licence: no restriction known" in done.stderr
    checksum = hashlib.sha256(site.files["/mirror/de-en.tgz"]).hexdigest()
    assert f"de-en.tgz: not verified, SHA-256 {checksum}; recorded in ep/downloads/de-en.tgz.sha256" in done.stderr
    again = regard("data", "get", "europarl-v7-de-en", "--from", f"{site.address}/mirror", "--out", "ep")
    assert (again.returncode, len(site.requests)) == (0, 1)
    assert "not verified" not in again.stderr
    (tmp_path / "ep/downloads/de-en.tgz").unlink()
    site.files["/mirror/de-en.tgz"] += b"x"
    changed = regard("data", "get", "europarl-v7-de-en", "--from", f"{site.address}/mirror", "--out", "ep")
    assert (changed.returncode, changed.stderr.count("\n")) == (2, 3)
    assert f"should have {checksum}; it was not kept" in changed.stderr


@pytest.mark.parametrize("name", ["tatoeba-en-de", "iwslt2014-de-en", "europarl-v7-de-en"])
def test_corpus_without_a_known_checksum_needs_trust(name: str, regard: Command, site: Site, tmp_path: Path) -> None:
    done = regard("data", "get", name, "--from", f"{site.address}/mirror")
    file = PUBLIC_CORPORA[name].remote_files[0].url.rsplit("/", 1)[-1]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"regard: no checksum is known for {site.address}/mirror/{file} and plain HTTP can be tampered with, so it "
        f"cannot be verified; use --trust to download it anyway\n"
    )
    assert site.requests == []
    assert list(tmp_path.iterdir()) == []


def test_mirror_with_a_wrong_checksum_is_refused(regard: Command, site: Site, tmp_path: Path) -> None:
    serve_corpus(site, PUBLIC_CORPORA["multi30k-en-de"])
    done = regard("data", "get", "multi30k-en-de", "--from", f"{site.address}/mirror")
    assert done.returncode == 2
    assert f"should have {PUBLIC_CORPORA['multi30k-en-de'].remote_files[0].sha256}; it was not kept" in done.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["tatoeba-en-de", "iwslt2014-de-en", "iwslt2017-de-en", "opus-books-en-fr"])
def test_every_archive_layout_is_unpacked(name: str, regard: Command, site: Site, tmp_path: Path) -> None:
    serve_corpus(site, PUBLIC_CORPORA[name])
    done = regard("data", "get", name, "--trust", "--from", f"{site.address}/mirror")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name}/{file}" for file in PUBLIC_CORPORA[name].list_files()]
    assert all((tmp_path / file).is_file() for file in done.stdout.splitlines())


def test_get_lists_names_and_suggests_corrections(regard: Command) -> None:
    listed = regard("data", "get", "--list")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in PUBLIC_CORPORA)
    assert "wmt14" in listed.stdout
    wrong = regard("data", "get", "multi30k-de-en")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "regard: unknown corpus 'multi30k-de-en'; use multi30k-en-de, which serves both directions\n"
    assert (
        "unknown corpus 'multi30-en-de'; did you mean 'multi30k-en-de'?"
        in regard("data", "get", "multi30-en-de").stderr
    )
    assert "name a corpus" in regard("data", "get").stderr
    pair = regard("data", "get", "wmt14-xx-yy")
    assert "sacreBLEU has wmt14 for cs-en, en-cs" in pair.stderr
    known = find_test_set("wmt14/full-de-en")
    assert known is not None
    assert (known[0].name, known[1]) == ("wmt14/full", "de-en")
    assert find_test_set("europarl") is None


@pytest.fixture
def experiment_site(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Serve the corpora of the experiments, whatever their checksums, and return the address of the mirror."""
    for name in ("multi30k-en-de", "tatoeba-en-de", "tatoeba-en-fr", "europarl-v7-de-en"):
        corpus = PUBLIC_CORPORA[name]
        unverified = tuple(replace(file, sha256=None) for file in corpus.remote_files)
        monkeypatch.setitem(PUBLIC_CORPORA, name, replace(corpus, remote_files=unverified))
    for folder, corpus in list_experiment_corpora():
        serve_corpus(site, corpus, f"/mirror/{folder}")
    for side in ("source", "reference"):
        (tmp_path / f"{side}.txt").write_text(f"{side}\n", encoding="utf-8")
    monkeypatch.setattr(Dataset, "get_source_file", lambda self, pair: tmp_path / "source.txt")
    monkeypatch.setattr(Dataset, "get_reference_files", lambda self, pair: [tmp_path / "reference.txt"])
    return f"{site.address}/mirror"


def test_get_all_experiments_writes_what_the_full_scale_reads(
    experiment_site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.corpus.public_corpora.EUROPARL_LINES", 1)
    arguments = ["data", "get", "--all-experiments", "--from", experiment_site, "--out", "data"]
    refused = CliRunner().invoke(app, arguments)
    assert "no checksum is known for" in str(refused.exception)
    assert not (tmp_path / "data").exists()
    done = CliRunner().invoke(app, [*arguments, "--trust"])
    assert done.exit_code == 0, done.exception
    assert "not fetched, since no download of them is known: align, ddtp, libreoffice" in done.stderr
    assert "data/newstest/newstest2014.de-en.de" in done.stdout.splitlines()
    assert (tmp_path / "data/newstest/newstest2009.en-fr.fr").read_text() == "reference\n"
    assert (tmp_path / "data/europarl20k-de-en/train.en").read_text() == "europarl-v7.de-en.en 1\n"
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    (tmp_path / "other.txt").write_text("source ||| target\n", encoding="utf-8")
    requested: list[str] = []

    def record_file(name: str) -> Path:
        requested.append(name)
        is_available = name.split("/")[0] not in UNAVAILABLE_FOLDERS
        return find_data_file(name) if is_available else tmp_path / "other.txt"

    monkeypatch.setattr("regard.reproduce.corpora.find_data_file", record_file)
    for corpus in ("multi30k", "mixed-ende", "mixed-enfr", "ud-english-ewt"):
        assert prepare_corpus(corpus, tmp_path / "corpora").test[0].is_file()
    page = (Path(__file__).parents[2] / "docs" / "experiment-data.md").read_text(encoding="utf-8")
    folders = {name.split("/")[0] for name in requested}
    assert folders >= set(UNAVAILABLE_FOLDERS)
    assert [folder for folder in folders if f"| `{folder}/` |" not in page] == []


def test_get_all_experiments_takes_no_name() -> None:
    result = CliRunner().invoke(app, ["data", "get", "multi30k-en-de", "--all-experiments"])
    assert "leave out multi30k" in str(result.exception)


# In a new interpreter: sacreBLEU reads the location of its cache when it is imported.
def test_sacrebleu_test_sets_are_downloaded(
    regard_process: Command, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU", str(tmp_path / "cache"))
    wrong = regard_process("data", "get", "wmt14-de-en", "--from", site.address)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "could not be fetched from" in wrong.stderr
    assert site.requests == [("/test-filtered.tgz", None)]
    (tmp_path / "cache/wmt14").mkdir(parents=True, exist_ok=True)
    for name in DATASETS["wmt14"].fieldnames("de-en"):
        text = {"src": "Haus\n", "ref": "house\n"}.get(name, "x\n")
        (tmp_path / f"cache/wmt14/wmt14.de-en.{name}").write_text(text)
    done = regard_process("data", "get", "wmt14-de-en", "--out", "t")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["t/test.de", "t/test.en"]
    assert ((tmp_path / "t/test.de").read_text(), (tmp_path / "t/test.en").read_text()) == ("Haus\n", "house\n")
