"""`regard data get`: download public corpora and test sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UserError, format_suggestion

if TYPE_CHECKING:
    from regard.corpus.public_corpora import PublicCorpus, RemoteFile


def get(
    name: Annotated[
        str | None, typer.Argument(help="Name of a corpus, or of a sacreBLEU test set such as wmt14-de-en.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the files; default: the name of the corpus.")] = None,
    mirror: Annotated[
        str | None, typer.Option("--from", help="Download from this URL, a folder with the same files.", metavar="URL")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Download a corpus although no checksum is known for it.")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the available corpora.")] = False,
) -> None:
    """Download a public corpus and verify it; an interrupted download is resumed.

    Example: regard data get multi30k-en-de --out multi30k
    """
    from regard.corpus.public_corpora import PUBLIC_CORPORA, download_test_set, find_test_set, list_test_sets

    if show_list:
        typer.echo(_format_corpus_list(PUBLIC_CORPORA, list_test_sets()))
        return
    if name is None:
        raise UserError("name a corpus; regard data get --list shows all of them")
    folder = out or Path(name.replace("/", "-"))
    if name in PUBLIC_CORPORA:
        files = _download_corpus(PUBLIC_CORPORA[name], folder, mirror, trust)
    elif find_test_set(name):
        typer.echo(f"{name}: a test set of sacreBLEU, free for research", err=True)
        files = download_test_set(name, folder, mirror)
    elif (swapped := _swap_languages(name)) in PUBLIC_CORPORA:
        raise UserError(f"unknown corpus {name!r}; use {swapped}, which serves both directions")
    else:
        raise UserError(f"unknown corpus {name!r}{format_suggestion(name, PUBLIC_CORPORA)}")
    for file in files:
        typer.echo(file)


def _swap_languages(name: str) -> str:
    """Return `corpus-en-de` for `corpus-de-en`."""
    *first, source, target = ["", *name.split("-")]
    return "-".join([*first[1:], target, source])


def _download_corpus(corpus: PublicCorpus, folder: Path, mirror: str | None, trust: bool) -> list[Path]:
    """Download, verify and unpack a corpus; return its files. Without `trust`, every checksum must be known."""
    from regard.console import log_message, make_progress_bar
    from regard.corpus.download import download_file, read_recorded_checksum, unpack_members

    def locate_download(download: RemoteFile) -> tuple[str, Path]:
        name = download.url.rsplit("/", 1)[-1]
        return f"{mirror.rstrip('/')}/{name}" if mirror else download.url, folder / "downloads" / name

    for address, path in [locate_download(download) for download in corpus.remote_files if download.sha256 is None]:
        if not trust and read_recorded_checksum(path.with_name(f"{path.name}.sha256")) is None:
            connection = " and plain HTTP can be tampered with" if address.startswith("http://") else ""
            raise UserError(
                f"no checksum is known for {address}{connection}, so it cannot be verified; "
                f"use --trust to download it anyway"
            )
    log_message(f"{corpus.description}; {corpus.size}")
    log_message(f"licence: {corpus.licence}")
    with make_progress_bar() as progress:
        for download in corpus.remote_files:
            address, path = locate_download(download)
            name = path.name
            task = progress.add_task(f"{name}, KB", total=None, note="")

            def update_progress(done: int, total: int | None, task: Any = task) -> None:
                progress.update(task, completed=done >> 10, total=total and total >> 10)

            downloaded = download_file(address, path, download.sha256, update_progress)
            if not downloaded.had_known_checksum:
                log_message(
                    f"{name}: not verified, SHA-256 {downloaded.sha256}; recorded in {downloaded.path}.sha256, "
                    f"and later downloads are verified against it"
                )
            members = {member: (folder / file_name, edit) for member, (file_name, edit) in download.members.items()}
            unpack_members(downloaded.path, members)
    return [folder / name for name in corpus.list_files()]


def _format_corpus_list(corpora: dict[str, PublicCorpus], testsets: list[str]) -> str:
    """List the corpora, one per line, and the test sets."""
    width = max(map(len, corpora))
    lines = [
        f"{name:<{width}}  {corpus.size:<13}{corpus.description}\n{'':<{width}}  {'':<13}{corpus.licence}"
        for name, corpus in corpora.items()
    ]
    sets = ", ".join(dict.fromkeys(name.split("/")[0] for name in testsets))
    return "\n".join([*lines, "", f"and sacreBLEU's test sets, followed by their languages (wmt14-de-en): {sets}"])
