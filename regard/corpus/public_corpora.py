"""Public corpora and sacreBLEU test sets that `regard data get` downloads."""

from __future__ import annotations

import http.client
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

from regard.corpus.archives import LineTransform
from regard.errors import UserError

_SEGMENT = re.compile(rb"<seg[^<>]*+>((?:(?!<seg).)*?)</seg>")


def copy_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Return the lines unchanged."""
    return lines


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


_MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_MULTI30K_SPLITS = {"train": "train", "val": "dev", "test_2016_flickr": "test"}
# Of the files at these URLs; their MD5 sums are those that torchtext 0.9 published.
MULTI30K_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "train.cs.gz": "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "val.cs.gz": "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "test_2016_flickr.cs.gz": "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1",
}
# As TensorFlow Datasets lists them for WMT 2019.
_NEWS_COMMENTARY_SHA256 = {
    "cs-en": "b0ef38b810bc67811eb908080243e0211062c26a7a71cc05996c96ea6c55e0ff",
    "de-en": "8aaa98a77d38bd39dcbdbcb775f3b6c633700e4c10fd915cf3dc6b9bfd0f2dca",
    "de-fr": "31a7735fe2ae6d6841847fdebb5aed03d5da1c15500695154d3c35d40c29cb09",
    "en-ru": "09aef10a0bb51104622ff6852cdf4f693b5906de970156b4e8db1e64ec55340c",
    "en-zh": "fc9cc3f28ad62872d8eece1dffb1148f972baf6621bc87ba049a3ae0aab4025b",
}


def _multi30k(other: str) -> PublicCorpus:
    """Return Multi30k: image captions in English and another language."""
    downloads = tuple(
        RemoteFile(
            f"{_MULTI30K_URL}/{split}.{language}.gz",
            {f"{split}.{language}": (f"{name}.{language}", copy_lines)},
            MULTI30K_SHA256[f"{split}.{language}.gz"],
        )
        for split, name in _MULTI30K_SPLITS.items()
        for language in ("en", other)
    )
    description = "captions of pictures; train 29,000, dev 1,014, test (2016) 1,000"
    return PublicCorpus(description, "for research, not for commerce (Flickr30k's terms)", "1.3 MB", downloads)


def _europarl(pair: str, pairs: str, size: str) -> PublicCorpus:
    """Return Europarl: speeches of the European Parliament."""
    members = {f"europarl-v7.{pair}.{side}": (f"train.{side}", copy_lines) for side in pair.split("-")}
    download = RemoteFile(f"https://www.statmt.org/europarl/v7/{pair}.tgz", members)
    description = f"speeches of the European Parliament, release 7; about {pairs} pairs"
    return PublicCorpus(description, "no restriction known to its makers; cite Koehn 2005", size, (download,))


def _news_commentary(pair: str, size: str) -> PublicCorpus:
    """Return News Commentary."""
    name = f"news-commentary-v14.{pair}.tsv"
    url = f"https://data.statmt.org/news-commentary/v14/training/{name}.gz"
    download = RemoteFile(url, {name: (f"{pair}.tsv", copy_lines)}, _NEWS_COMMENTARY_SHA256[pair])
    return PublicCorpus(
        "commentaries on the news, release 14", "for research (Project Syndicate, WMT)", size, (download,)
    )


def _tatoeba(code: str, language: str, size: str) -> PublicCorpus:
    """Return everyday sentences, as manythings.org selects them from Tatoeba."""
    members = {f"{code}.txt": (f"en-{language}.tsv", copy_lines)}
    download = RemoteFile(f"https://www.manythings.org/anki/{code}-eng.zip", members)
    description = "short everyday sentences, several translations each; grows from time to time"
    return PublicCorpus(description, "CC BY 2.0 (tatoeba.org; the third column names the authors)", size, (download,))


def _iwslt14() -> PublicCorpus:
    """Return IWSLT 2014: TED talks, on which many papers report results."""
    members = {f"train.tags.de-en.{side}": (f"train.{side}", drop_tag_lines) for side in ("de", "en")}
    for split, name in {"dev2010": "dev", "tst2010": "tst2010", "tst2011": "tst2011", "tst2012": "tst2012"}.items():
        for side in ("de", "en"):
            members[f"IWSLT14.TED.{split}.de-en.{side}.xml"] = (f"{name}.{side}", extract_segments)
    download = RemoteFile("https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", members)
    description = "TED talks; train about 170,000, dev2010, tst2010 to tst2012"
    return PublicCorpus(description, "CC BY-NC-ND 4.0 (TED)", "about 20 MB", (download,))


def _iwslt17(pair: str, pairs: str) -> PublicCorpus:
    """Return IWSLT 2017: TED talks."""
    source, target = pair.split("-")
    members = {f"train.tags.{pair}.{side}": (f"train.{side}", drop_tag_lines) for side in (source, target)}
    for split, name in {"dev2010": "dev", "tst2015": "test"}.items():
        for side in (source, target):
            members[f"IWSLT17.TED.{split}.{pair}.{side}.xml"] = (f"{name}.{side}", extract_segments)
    folder = "https://huggingface.co/datasets/IWSLT/iwslt2017/resolve/main/data/2017-01-trnted/texts"
    download = RemoteFile(f"{folder}/{source}/{target}/{pair}.zip", members)
    description = f"TED talks; train about {pairs}, dev2010, tst2015"
    return PublicCorpus(description, "CC BY-NC-ND 4.0 (TED)", "about 17 MB", (download,))


def _opus_books(pair: str, pairs: str) -> PublicCorpus:
    """Return OPUS Books: old books, aligned by hand."""
    members = {f"Books.{pair}.{side}": (f"train.{side}", copy_lines) for side in pair.split("-")}
    download = RemoteFile(f"https://object.pouta.csc.fi/OPUS-Books/v1/moses/{pair}.txt.zip", members)
    description = f"books out of copyright, aligned by hand; {pairs} pairs"
    return PublicCorpus(
        description, "for personal, educational and research use (OPUS, A. Farkas)", "a few MB", (download,)
    )


PUBLIC_CORPORA: dict[str, PublicCorpus] = {
    "multi30k-en-de": _multi30k("de"),
    "multi30k-en-fr": _multi30k("fr"),
    "multi30k-en-cs": _multi30k("cs"),
    "tatoeba-en-de": _tatoeba("deu", "de", "about 10 MB"),
    "tatoeba-en-fr": _tatoeba("fra", "fr", "about 8 MB"),
    "tatoeba-en-es": _tatoeba("spa", "es", "about 5 MB"),
    "iwslt2014-de-en": _iwslt14(),
    "iwslt2017-de-en": _iwslt17("de-en", "206,000"),
    "iwslt2017-fr-en": _iwslt17("fr-en", "233,000"),
    "europarl-v7-de-en": _europarl("de-en", "1,920,000", "about 190 MB"),
    "europarl-v7-fr-en": _europarl("fr-en", "2,007,000", "about 200 MB"),
    "europarl-v7-cs-en": _europarl("cs-en", "647,000", "about 60 MB"),
    "news-commentary-v14-cs-en": _news_commentary("cs-en", "28 MB"),
    "news-commentary-v14-de-en": _news_commentary("de-en", "39 MB"),
    "news-commentary-v14-de-fr": _news_commentary("de-fr", "34 MB"),
    "news-commentary-v14-en-ru": _news_commentary("en-ru", "41 MB"),
    "news-commentary-v14-en-zh": _news_commentary("en-zh", "37 MB"),
    "opus-books-de-en": _opus_books("de-en", "51,000"),
    "opus-books-en-fr": _opus_books("en-fr", "127,000"),
    "opus-books-en-it": _opus_books("en-it", "32,000"),
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


def download_test_set(name: str, folder: Path, mirror: str | None = None) -> list[Path]:
    """Write `test.SOURCE` and `test.TARGET`, the first one of several references."""
    known = find_test_set(name)
    assert known is not None
    dataset, pair = known
    if mirror:
        dataset.data = [f"{mirror.rstrip('/')}/{address.rsplit('/', 1)[-1]}" for address in dataset.data]
    try:
        files = [dataset.get_source_file(pair), dataset.get_reference_files(pair)[0]]
    except (OSError, http.client.HTTPException, tarfile.TarError, zipfile.BadZipFile, SystemExit) as error:
        reason = "its checksum is wrong" if isinstance(error, SystemExit) else str(error)
        raise UserError(
            f"{name} could not be fetched from {', '.join(dataset.data)}: {reason}; remove sacreBLEU's copy "
            f"(~/.sacrebleu/{dataset.name}) and try again"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / f"test.{language}" for language in pair.split("-")]
    for file, output in zip(files, outputs, strict=True):
        shutil.copyfile(file, output)
    return outputs
