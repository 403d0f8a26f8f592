"""Public corpora (of `public_corpora.yaml`) and sacreBLEU test sets that `regard data get` downloads.

Also what the experiments read under REGARD_DATA: `regard data get --all-experiments` downloads it in the layout that
`regard reproduce --scale full` expects, except for corpora that have no public home.
"""

from __future__ import annotations

import http.client
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from html import unescape
from itertools import islice
from pathlib import Path
from typing import Any

from regard.corpus.download import LineTransform
from regard.errors import UserError
from regard.paths import read_package_yaml

_SEGMENT = re.compile(rb"<seg[^<>]*+>((?:(?!<seg).)*?)</seg>")


def drop_tag_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the sentences of IWSLT training files: lines that are one element (address, title, speaker) are dropped."""
    return (line.strip() + b"\n" for line in lines if not line.lstrip().startswith(b"<"))


def extract_segments(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the text of the <seg> elements of IWSLT test files."""
    for line in lines:
        for segment in _SEGMENT.findall(line):
            yield unescape(segment.decode("utf-8", "replace")).strip().encode() + b"\n"


@dataclass(frozen=True)
class RemoteFile:
    """A file of a corpus: its URL, its checksum, and which member becomes which local file through which transform.

    `sha256` is None if none has been published, or if the file grows; the first download records what it computed.
    """

    url: str
    members: Mapping[str, tuple[str, LineTransform]]
    sha256: str | None = None


@dataclass(frozen=True)
class PublicCorpus:
    """A public corpus: description, licence, size and files."""

    description: str
    licence: str
    size: str
    remote_files: tuple[RemoteFile, ...] = field(repr=False)

    def list_files(self) -> list[str]:
        """Return the names of its files after unpacking."""
        return [name for download in self.remote_files for name, _ in download.members.values()]


def _choose_transform(member: str) -> LineTransform:
    """Return the conversion of a file's lines, by its name: training and test files of IWSLT have elements in them."""
    if member.startswith("train.tags."):
        return drop_tag_lines
    return extract_segments if member.endswith(".xml") else iter


def _build_corpus(family: Mapping[str, Any], pair: str, values: Mapping[str, str]) -> PublicCorpus:
    """Build the corpus of a language pair by the templates of its family in `public_corpora.yaml`."""
    sides, remote_files, checksums = pair.split("-"), [], family.get("sha256", {})
    values = {**values, "pair": pair, "first": sides[0], "last": sides[1]}
    for url_template, member_templates in family["files"].items():
        for sides_of_file in [[side] for side in sides] if "{side}" in url_template else [sides]:
            members = {}
            for template, name in member_templates.items():
                for side in sides_of_file:
                    member = template.format(side=side, **values)
                    members[member] = (name.format(side=side, **values), _choose_transform(member))
            url = url_template.format(side=sides_of_file[0], **values)
            remote_files.append(RemoteFile(url, members, checksums.get(url.rpartition("/")[2])))
    return PublicCorpus(family["description"].format(**values), family["licence"], values["size"], tuple(remote_files))


_FAMILIES: dict[str, Any] = read_package_yaml("regard.corpus", "public_corpora.yaml")
PUBLIC_CORPORA = {
    f"{name}-{pair}": _build_corpus(family, pair, values)
    for name, family in _FAMILIES.items()
    for pair, values in family["corpora"].items()
}


def list_test_sets() -> list[str]:
    """Return the names of sacreBLEU's test sets, without languages."""
    from sacrebleu.dataset import DATASETS

    return list(DATASETS)


def find_test_set(name: str) -> tuple[Any, str] | None:
    """Return the sacreBLEU test set and the language pair of a name, or None if there is no such set."""
    from sacrebleu.dataset import DATASETS

    for known in sorted(DATASETS, key=len, reverse=True):
        if name == known or name.startswith(f"{known}-"):
            pair = name[len(known) + 1 :]
            if pair not in DATASETS[known].langpairs:
                pairs = ", ".join(DATASETS[known].langpairs)
                raise UserError(f"{name}: sacreBLEU has {known} for {pairs}; name it {known}-LANGUAGES")
            return DATASETS[known], pair
    return None


def download_test_set(
    dataset: Any, pair: str, folder: Path, mirror: str | None = None, stem: str = "test"
) -> list[Path]:
    """Write `STEM.SOURCE` and `STEM.TARGET` of what `find_test_set` returned, the first one of several references."""
    if mirror:
        dataset.data = [f"{mirror.rstrip('/')}/{address.rsplit('/', 1)[-1]}" for address in dataset.data]
    try:
        files = [dataset.get_source_file(pair), dataset.get_reference_files(pair)[0]]
    except (OSError, http.client.HTTPException, tarfile.TarError, zipfile.BadZipFile, SystemExit) as error:
        reason = "its checksum is wrong" if isinstance(error, SystemExit) else str(error)
        raise UserError(
            f"{dataset.name}-{pair} could not be fetched from {', '.join(dataset.data)}: {reason}; remove sacreBLEU's "
            f"copy (~/.sacrebleu/{dataset.name}) and try again"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / f"{stem}.{language}" for language in pair.split("-")]
    for file, output in zip(files, outputs, strict=True):
        shutil.copyfile(file, output)
    return outputs


EUROPARL_LINES = 20_000  # the first lines of Europarl
NEWSTESTS = {  # sacreBLEU's names of the news test sets that exist in both language pairs, and those of the files
    "wmt08": "news-test2008",
    "wmt09": "newstest2009",
    "wmt10": "newstest2010",
    "wmt11": "newstest2011",
    "wmt12": "newstest2012",
    "wmt13": "newstest2013",
}
LATE_NEWSTESTS = {
    "wmt14/full": "newstest2014",
    "wmt16": "newstest2016",
    "wmt17": "newstest2017",
    "wmt18": "newstest2018",
}
# Stem of the files in the folder `newstest` → name of sacreBLEU's test set.
EXPERIMENT_TEST_SETS = {
    **{f"{file}.de-en": f"{name}-de-en" for name, file in {**NEWSTESTS, **LATE_NEWSTESTS}.items()},
    **{f"{file}.en-fr": f"{name}-en-fr" for name, file in NEWSTESTS.items()},
}
# Folders whose files no command fetches: their origins do not publish them in this form.
UNAVAILABLE_FOLDERS = ("align", "ddtp", "libreoffice", "manpages", "ud-english-ewt")


def list_experiment_corpora() -> list[tuple[str, PublicCorpus]]:
    """Return the public corpora with their folders under REGARD_DATA, and their files named as the experiments do."""
    multi30k = {"dev": "val", "test": "test_2016_flickr"}
    sides = ("en", "de")
    return [
        (
            "multi30k",
            _rename_files("multi30k-en-de", {f"{a}.{s}": f"{b}.{s}" for a, b in multi30k.items() for s in sides}),
        ),
        ("tatoeba", _rename_files("tatoeba-en-de", {"en-de.tsv": "eng-deu.txt"})),
        ("tatoeba", _rename_files("tatoeba-en-fr", {"en-fr.tsv": "eng-fra.txt"})),
        ("europarl20k-de-en", _rename_files("europarl-v7-de-en", {}, EUROPARL_LINES)),
    ]


def _rename_files(name: str, files: Mapping[str, str], max_lines: int | None = None) -> PublicCorpus:
    """Return a public corpus whose files have other names, and at most `max_lines` lines."""
    corpus, remote_files = PUBLIC_CORPORA[name], []
    for file in corpus.remote_files:
        members: dict[str, tuple[str, LineTransform]] = {
            member: (files.get(path, path), transform if max_lines is None else partial(_take_lines, max_lines))
            for member, (path, transform) in file.members.items()
        }
        remote_files.append(replace(file, members=members))
    return replace(corpus, remote_files=tuple(remote_files))


def _take_lines(count: int, lines: Iterator[bytes]) -> Iterator[bytes]:
    return islice(lines, count)
