"""Real corpora of the experiments under REGARD_DATA: where public ones come from, and which ones have no public home.

`regard data get --all-experiments` downloads them in the layout that `regard reproduce --scale full` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

from regard.corpus.download import LineTransform
from regard.corpus.public_corpora import PUBLIC_CORPORA, PublicCorpus

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
