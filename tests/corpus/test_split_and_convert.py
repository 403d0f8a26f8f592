"""`regard data split` keeps sources apart, and `regard data convert` writes files that read back the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Command

from regard.corpus.split import split_corpus
from regard.corpus.writers import open_pair_writer
from regard.data.readers.dispatch import iterate_pairs
from regard.data.readers.text import Pair
from regard.errors import UserError

PAIRS = [Pair(f"sentence {number // 3} .", f"Satz {number} .") for number in range(300)]


def write_pairs(*paths: Path, pairs: list[Pair] = PAIRS) -> list[Path]:
    with open_pair_writer(paths, languages=("en", "de")) as write:
        for pair in pairs:
            write(pair)
    return list(paths)


def test_split_keeps_pairs_of_one_source_together(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "memory.tmx", pairs=[*PAIRS, Pair("", "leer")])
    counts = split_corpus(data, tmp_path / "out", num_test=30, num_dev=12)
    assert counts == {"train": 258, "dev": 12, "test": 30}
    parts = {
        name: list(iterate_pairs([tmp_path / "out" / f"{name}.en", tmp_path / "out" / f"{name}.de"])) for name in counts
    }
    assert {name: len(pairs) for name, pairs in parts.items()} == counts
    assert sorted(pair for part in parts.values() for pair in part) == sorted(PAIRS)
    sources = [{pair.source for pair in pairs} for pairs in parts.values()]
    assert sum(map(len, sources)) == len(set.union(*sources))


def test_split_does_not_depend_on_the_order_of_pairs(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "a.tsv"), write_pairs(tmp_path / "b.tsv", pairs=PAIRS[::-1])
    tests = []
    for number, files in enumerate(data):
        split_corpus(files, tmp_path / str(number), num_test=20, num_dev=20)
        tests.append(sorted((tmp_path / str(number) / "test.tsv").read_text(encoding="utf-8").splitlines()))
    assert tests[0] == tests[1]
    split_corpus(data[0], tmp_path / "seed", num_test=20, num_dev=20, seed=2)
    assert sorted((tmp_path / "seed" / "test.tsv").read_text(encoding="utf-8").splitlines()) != tests[0]


NUM_DOCUMENTS = 40


def make_documents() -> list[tuple[str, Pair]]:
    """Return documents of 10 sentences; each begins with a sentence that all have, and has one of its neighbour."""
    return [
        (f"page {document}", Pair(source, f"{source} {document}"))
        for document in range(NUM_DOCUMENTS)
        for source in ["Contents", f"1 in {document + 1}", *(f"{number} in {document}" for number in range(1, 9))]
    ]


def write_documents(folder: Path, suffix: str) -> list[Path]:
    """Write the documents as a file of this format."""
    documents = make_documents()
    if suffix in (".tsv", ".en"):
        paths = [folder / "memory.tsv"] if suffix == ".tsv" else [folder / "memory.en", folder / "memory.de"]
        (folder / "memory.doc").write_text("".join(f"{name}\n" for name, _ in documents), encoding="utf-8")
        return write_pairs(*paths, pairs=[pair for _, pair in documents])
    path = folder / f"memory{suffix}"
    if suffix == ".tmx":
        units = (
            f'<tu><prop type="x-document">{name}</prop><tuv xml:lang="en"><seg>{pair.source}</seg></tuv>'
            f'<tuv xml:lang="de"><seg>{pair.target}</seg></tuv></tu>'
            for name, pair in documents
        )
        text = f'<tmx version="1.4"><header srclang="en"/><body>{"".join(units)}</body></tmx>'
    else:
        units = (
            f'<file original="{name}" source-language="en" target-language="de"><body><trans-unit>'
            f"<source>{pair.source}</source><target>{pair.target}</target></trans-unit></body></file>"
            for name, pair in documents
        )
        text = f'<xliff version="1.2">{"".join(units)}</xliff>'
    path.write_text(text, encoding="utf-8")
    return [path]


@pytest.mark.parametrize("suffix", [".tsv", ".en", ".tmx", ".xliff"])
def test_split_by_document_keeps_documents_together_and_sources_apart(tmp_path: Path, suffix: str) -> None:
    counts = split_corpus(write_documents(tmp_path, suffix), tmp_path / "out", 40, 30, by_document=True)
    names = {pair: name for name, pair in make_documents()}
    suffixes = [".tsv"] if suffix == ".tsv" else [".en", ".de"]
    parts = {name: list(iterate_pairs([tmp_path / "out" / f"{name}{one}" for one in suffixes])) for name in counts}
    assert {name: len(pairs) for name, pairs in parts.items()} == counts
    assert counts["test"] == 40
    documents = {part: {names[pair] for pair in pairs} for part, pairs in parts.items()}
    assert {part: len(found) for part, found in documents.items()} == {"train": 33, "dev": 3, "test": 4}
    assert len(set.union(*documents.values())) == NUM_DOCUMENTS
    sources = {part: {pair.source for pair in pairs} for part, pairs in parts.items()}
    assert sum(map(len, sources.values())) == len(set.union(*sources.values()))
    assert "Contents" in sources["test"]
    kept = {pair for pairs in parts.values() for pair in pairs}
    held_out = {
        name: set().union(*(sources[part] for part in later))
        for name, later in (("train", ("dev", "test")), ("dev", ("test",)))
    }
    for _, pair in make_documents():
        if pair not in kept:
            part = next(part for part, found in documents.items() if names[pair] in found)
            assert pair.source in held_out[part], "a pair is left out only if a held-out set has its source"


def test_split_by_document_needs_names_of_documents(tmp_path: Path) -> None:
    out, pairs, memory = tmp_path / "out", tmp_path / "pairs.tsv", tmp_path / "memory.tmx"
    documents, repeated = pairs.with_suffix(".doc"), tmp_path / "repeated.tsv"
    write_pairs(pairs)
    write_pairs(memory)
    write_pairs(repeated, pairs=[Pair(f"sentence {number % 7}", f"Satz {number}") for number in range(70)])
    repeated.with_suffix(".doc").write_text("".join(f"{number // 7}\n" for number in range(70)), encoding="utf-8")

    def refuse(path: Path) -> str:
        with pytest.raises(UserError) as refused:
            split_corpus([path], out, 40, 30, by_document=True)
        return str(refused.value)

    assert refuse(pairs) == f"there is no file {documents}, whose lines name the document of each pair"
    assert refuse(memory) == f"{memory} names no documents: split it without --by-document"
    documents.write_text("a\nb\nc\n", encoding="utf-8")
    assert refuse(pairs) == f"{documents} has 3 lines for 300 pairs"
    documents.write_text("a\n" * 200 + "b\n" * 100, encoding="utf-8")
    assert refuse(pairs) == f"{pairs}: pairs of 2 documents are too few for train, dev and test"
    assert refuse(repeated) == "no pairs are left for train: all of its sources are in another part as well"
    assert not out.exists()


def test_split_does_not_overwrite_files(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "pairs.tsv")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "test.tsv").write_text("mine\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"test\.tsv already exists"):
        split_corpus(data, tmp_path / "out", num_test=20, num_dev=20)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["test.tsv"]
    assert split_corpus(data, tmp_path / "out", num_test=20, num_dev=20, overwrite=True)["test"] > 0


def test_tmx_that_is_written_reads_back_the_same(tmp_path: Path) -> None:
    pairs = [Pair("a < b & c > d", 'ein "Satz"'), Pair("日本語 \U0001f600", "x]]>y"), Pair("bell", "Glocke")]
    (path,) = write_pairs(tmp_path / "memory.tmx.gz", pairs=[*pairs[:2], Pair("be\x07ll", "Glo\x00cke")])
    assert list(iterate_pairs([path])) == pairs
    assert list(iterate_pairs([path], "de", "en")) == [Pair(*pair[::-1]) for pair in pairs]


def test_convert_takes_languages_from_names_or_options(regard: Command, tmp_path: Path) -> None:
    write_pairs(tmp_path / "train.en", tmp_path / "train.de")
    write_pairs(tmp_path / "pairs.tsv")
    done = regard("data", "convert", "train.en", "train.de", "--out", "memory.tmx")
    assert (done.returncode, done.stdout) == (0, "")
    assert list(iterate_pairs([tmp_path / "memory.tmx"])) == PAIRS
    refused = regard("data", "convert", "pairs.tsv", "--out", "new.tmx")
    assert refused.stderr == "regard: new.tmx names its languages: give --source and --target\n"
    assert (refused.returncode, (tmp_path / "new.tmx").exists()) == (2, False)
    regard("data", "convert", "pairs.tsv", "--out", "new.tmx", "--source", "en", "--target", "de")
    assert (tmp_path / "new.tmx").read_bytes() == (tmp_path / "memory.tmx").read_bytes()


def test_split_refuses_a_pipe(regard: Command, tmp_path: Path) -> None:
    refused = regard("data", "split", "-", "--out", "out", input="a\tb\n")
    assert refused.returncode == 2
    assert refused.stderr.startswith("regard: standard input can be read only once")
    assert list(tmp_path.iterdir()) == []
