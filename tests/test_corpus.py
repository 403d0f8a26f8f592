"""Corpora on disk: what is read, and what is said of files that cannot be."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.corpus import Pair, holds_pairs, languages, pairs, read
from regard.data.embedded import write
from regard.data.files import lines
from regard.errors import UserError
from regard.evaluate import read_gold

# what may stand inside a line, and what other tools take for the end of one
ODD = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
inside = st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")))
PAIRS = [Pair("a house", "ein Haus"), Pair("the tree", "der Baum")]


def plain(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def gzipped(path: Path, content: bytes) -> Path:
    return plain(path.with_name(path.name + ".gz"), gzip.compress(content, mtime=0))


def xz(path: Path, content: bytes) -> Path:
    return plain(path.with_name(path.name + ".xz"), lzma.compress(content))


PACKED = pytest.mark.parametrize("packed", [plain, gzipped, xz])
Packed = Callable[[Path, bytes], Path]


def complaint(paths: list[Path]) -> str:
    with pytest.raises(UserError) as caught:
        pairs(paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@PACKED
def test_two_files(packed: Packed, tmp_path: Path) -> None:
    source = packed(tmp_path / "train.en", b"a house\nthe tree\n")
    target = packed(tmp_path / "train.de", b"ein Haus\nder Baum\n")
    assert pairs([source, target]) == PAIRS


@PACKED
def test_tsv(packed: Packed, tmp_path: Path) -> None:
    path = packed(tmp_path / "en-de.tsv", b"a house\tein Haus\nthe tree\tder Baum\tand more\t\n")
    assert pairs([path]) == PAIRS


@PACKED
def test_jsonl(packed: Packed, tmp_path: Path) -> None:
    rows = [{"source": pair.source, "target": pair.target, "id": number} for number, pair in enumerate(PAIRS)]
    path = packed(tmp_path / "pairs.jsonl", "\n\n".join(map(json.dumps, rows)).encode())
    assert pairs([path]) == PAIRS


def test_a_compressed_and_a_plain_file_go_together(tmp_path: Path) -> None:
    source = gzipped(tmp_path / "train.en", b"a house\nthe tree\n")
    target = plain(tmp_path / "train.de", b"ein Haus\nder Baum")
    assert pairs([source, target]) == PAIRS


def test_a_missing_file(tmp_path: Path) -> None:
    there, gone = plain(tmp_path / "a.en", b"a\n"), tmp_path / "a.de"
    assert complaint([there, gone]) == f"there is no file {gone}"
    assert complaint([tmp_path / "gone.tsv"]) == f"there is no file {tmp_path / 'gone.tsv'}"
    assert complaint([there, tmp_path]) == f"{tmp_path} is a folder, and a file is wanted"


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3), (0, 1), (4, 0)])
def test_different_line_counts_are_both_named(left: int, right: int, tmp_path: Path) -> None:
    source, target = plain(tmp_path / "a.en", b"x\n" * left), plain(tmp_path / "a.de", b"y\n" * right)
    said = complaint([source, target])
    assert f"{source} has {left} lines and {target} has {right};" in said


@PACKED
def test_not_utf8_is_named_by_file_and_line(packed: Packed, tmp_path: Path) -> None:
    path = packed(tmp_path / "x.tsv", b"a\tb\nc\xe4\td\n")
    assert complaint([path]).startswith(f"{path}:2: not UTF-8 (byte 2 of the line)")


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t \n", b"a\t\n", b"\tb\n", b"\xef\xbb\xbf"])
def test_a_corpus_without_a_pair(content: bytes, tmp_path: Path) -> None:
    path = plain(tmp_path / "x.tsv", content)
    with pytest.raises(UserError):
        pairs([path])


def test_an_empty_corpus_is_said_to_be_empty(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.tsv", b"")
    assert complaint([path]) == f"{path}: no pairs in there, nothing to work with"
    two = [plain(tmp_path / "x.en", b"\n"), plain(tmp_path / "x.de", b"y\n")]
    assert complaint(two) == f"{two[0]} and {two[1]}: no pairs in there, nothing to work with"


def test_a_pair_with_an_empty_side_is_kept_beside_a_whole_one(tmp_path: Path) -> None:
    two = [plain(tmp_path / "x.en", b"\na\n"), plain(tmp_path / "x.de", b"y\nb\n")]
    assert pairs(two) == [Pair("", "y"), Pair("a", "b")]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_damaged_archives(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    ending = ".gz" if pack is gzip.compress else ".xz"
    content = "".join(f"{number * 7919 % 1000}\t{number * 104729 % 1000}\n" for number in range(2000)).encode()
    whole = pack(content)
    flipped = bytearray(whole)
    for place in range(len(whole) // 2, len(whole) // 2 + 40):
        flipped[place] ^= 0xFF
    for damaged in (whole[: len(whole) // 2], whole[:-4], bytes(flipped), b"not packed at all\n"):
        path = plain(tmp_path / f"x.tsv{ending}", damaged)
        assert complaint([path]).startswith(f"{path} is damaged, it cannot be decompressed")
    path = plain(tmp_path / f"x.tsv{ending}", whole)
    assert len(pairs([path])) == 2000


@PACKED
def test_a_byte_order_mark_is_no_text(packed: Packed, tmp_path: Path) -> None:
    path = packed(tmp_path / "x.tsv", b"\xef\xbb\xbfa\tb\n\xef\xbb\xbfc\td\n")
    assert pairs([path]) == [Pair("a", "b"), Pair("\ufeffc", "d")]


def test_windows_line_ends(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.tsv", b"a\tb\r\nc\td\r\n")
    assert pairs([path]) == [Pair("a", "b"), Pair("c", "d")]
    two = [plain(tmp_path / "x.en", b"a\r\nc"), plain(tmp_path / "x.de", b"b\nd\r\n")]
    assert pairs(two) == [Pair("a", "b"), Pair("c", "d")]


@given(written=st.lists(inside, max_size=6))
def test_only_a_line_feed_ends_a_line(written: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes("".join(line + "\n" for line in ["", *written]).encode())
    assert list(lines(path)) == ["", *written]


@pytest.mark.parametrize("odd", list(ODD))
def test_odd_separators_do_not_shift_two_files(odd: str, tmp_path: Path) -> None:
    source = plain(tmp_path / "x.en", f"a{odd}b\nc\n".encode())
    target = plain(tmp_path / "x.de", b"1\n2\n")
    assert pairs([source, target]) == [Pair(f"a{odd}b", "1"), Pair("c", "2")]


@given(rows=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), inside), min_size=1, max_size=5))
def test_jsonl_gives_back_any_text(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    for ascii_only in (True, False):
        documents = (json.dumps({"source": a, "target": b}, ensure_ascii=ascii_only) for a, b in rows)
        path.write_bytes("\n".join(documents).encode())
        assert list(read([path])) == [Pair(*row) for row in rows]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5000, "not JSON"),
        ("[]", "not a pair"),
        ("3", "not a pair"),
        ('{"source": "a"}', "not a pair"),
        ('{"source": "a", "target": 3}', "not a pair"),
        ('{"source": "a", "target": null}', "not a pair"),
        ('{"source": "a", "target": "\\ud800"}', "half a character"),
    ],
)
def test_a_bad_line_of_jsonl_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = plain(tmp_path / "x.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n'.encode())
    assert complaint([path]).startswith(f"{path}:2: {said}")


def test_a_line_of_tsv_without_a_tab_is_named(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.tsv", b"a\tb\nc d\n")
    assert complaint([path]).startswith(f"{path}:2: no tab")


@pytest.mark.parametrize("names", [[], ["a.txt"], ["a.tsv", "b.tsv"], ["a.en", "b.tsv"], ["a.en", "b.de", "c.fr"]])
def test_data_is_one_file_of_pairs_or_two_of_text(names: list[str]) -> None:
    with pytest.raises(UserError, match="data is one file that holds pairs"):
        read([Path(name) for name in names])


def test_holds_pairs() -> None:
    assert all(map(holds_pairs, map(Path, ("a.tsv", "a.tsv.gz", "b/a.jsonl.xz"))))
    assert not any(map(holds_pairs, map(Path, ("a.en", "tsv", "a.gz", "a.tsv.txt", "x.tsv/a.en"))))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["train.en", "train.de"], ("en", "de")),
        (["train.en.gz", "train.de.xz"], ("en", "de")),
        (["a.txt", "b.txt"], ("source", "target")),
        (["source", "target"], ("source", "target")),
        (["a.en", "b"], ("source", "target")),
        (["de-en.tsv"], ("de", "en")),
        (["corpus_de-en.tsv.gz"], ("de", "en")),
        (["deu-eng.jsonl"], ("deu", "eng")),
        (["news-commentary.tsv"], ("source", "target")),
        (["memory.tsv"], ("source", "target")),
        (["a-b.tsv"], ("source", "target")),
        ([], ("source", "target")),
    ],
)
def test_languages_by_the_names_of_the_files(names: list[str], found: tuple[str, str]) -> None:
    assert languages([Path("some-folder") / name for name in names]) == found


def test_the_embedded_corpus_agrees_with_itself(tmp_path: Path) -> None:
    counts = write(tmp_path / "new" / "corpus", 60, seed=3)
    assert counts == {"train": 60, "dev": 6, "test": 6}
    folder = tmp_path / "new" / "corpus"
    assert {path.name for path in folder.iterdir()} == {
        f"{split}.{ending}" for split in counts for ending in ("en", "de", "align")
    }
    seen: set[str] = set()
    for split, count in counts.items():
        corpus = pairs([folder / f"{split}.en", folder / f"{split}.de"])
        gold = read_gold(folder / f"{split}.align", corpus)  # raises where a link runs past its sentence
        assert len(corpus) == len(gold) == count
        for links, pair in zip(gold, corpus, strict=True):
            assert links.sure
            assert all(source < len(pair.source.split()) for source, _ in links.possible)
            assert all(target < len(pair.target.split()) for _, target in links.possible)
        assert not seen & {pair.source for pair in corpus}
        seen |= {pair.source for pair in corpus}


def test_the_embedded_corpus_is_a_function_of_its_seed(tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(tmp_path / folder, 20, seed)
    first, again, other = (
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("a", "b", "c")
    )
    assert first == again
    assert first["train.en"] != other["train.en"]


def test_an_embedded_corpus_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 10 pairs, not 9"):
        write(tmp_path, 9)
    assert list(tmp_path.iterdir()) == []
