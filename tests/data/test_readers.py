"""Reading corpora: two text files, TSV and JSONL, plain or compressed, and the errors of invalid files."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import PACKED, corpus_error
from support.files import write_file

from regard.data.readers.dispatch import find_corpus_languages, is_bilingual_file, iterate_pairs, read_all_pairs
from regard.data.readers.text import Pair, iterate_lines
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.synthetic.translation import write_translation_corpus

# characters inside a line that other tools take for line breaks, such as str.splitlines
OTHER_LINE_SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
LINE_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")
LINES = st.text(st.one_of(st.sampled_from(OTHER_LINE_SEPARATORS), LINE_CHARACTERS))
PAIRS = [Pair("a house", "ein Haus"), Pair("the tree", "der Baum")]


COMPRESSIONS = pytest.mark.parametrize("ending", ["", ".gz", ".xz"], ids=["uncompressed", "gz", "xz"])


def write_compressed(path: Path, content: bytes, ending: str) -> Path:
    return write_file(path.with_name(path.name + ending), PACKED[ending](content))


@COMPRESSIONS
def test_source_and_target_file_are_read_as_pairs(ending: str, tmp_path: Path) -> None:
    source = write_compressed(tmp_path / "train.en", b"a house\nthe tree\n", ending)
    target = write_compressed(tmp_path / "train.de", b"ein Haus\nder Baum\n", ending)
    assert read_all_pairs([source, target]) == PAIRS


@COMPRESSIONS
def test_tsv_is_read_and_further_columns_are_ignored(ending: str, tmp_path: Path) -> None:
    content = b"a house\tein Haus\nthe tree\tder Baum\tand more\t\n"
    path = write_compressed(tmp_path / "en-de.tsv", content, ending)
    assert read_all_pairs([path]) == PAIRS


@COMPRESSIONS
def test_jsonl_is_read_and_other_keys_and_blank_lines_ignored(ending: str, tmp_path: Path) -> None:
    rows = [{"source": pair.source, "target": pair.target, "id": number} for number, pair in enumerate(PAIRS)]
    path = write_compressed(tmp_path / "pairs.jsonl", "\n\n".join(map(json.dumps, rows)).encode(), ending)
    assert read_all_pairs([path]) == PAIRS


def test_compressed_source_and_uncompressed_target_are_read(tmp_path: Path) -> None:
    source = write_compressed(tmp_path / "train.en", b"a house\nthe tree\n", ".gz")
    target = write_file(tmp_path / "train.de", b"ein Haus\nder Baum")
    assert read_all_pairs([source, target]) == PAIRS


def test_missing_file_or_folder_is_refused(tmp_path: Path) -> None:
    there, gone = write_file(tmp_path / "a.en", b"a\n"), tmp_path / "a.de"
    assert corpus_error([there, gone]) == f"there is no file {gone}"
    assert corpus_error([tmp_path / "gone.tsv"]) == f"there is no file {tmp_path / 'gone.tsv'}"
    assert corpus_error([there, tmp_path]) == f"{tmp_path} is a folder, not a file"


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3), (0, 1), (4, 0)])
def test_line_count_mismatch_error_names_both_counts(left: int, right: int, tmp_path: Path) -> None:
    source, target = write_file(tmp_path / "a.en", b"x\n" * left), write_file(tmp_path / "a.de", b"y\n" * right)
    assert f"{source} has {left} lines and {target} has {right};" in corpus_error([source, target])


@COMPRESSIONS
def test_invalid_utf_8_error_names_file_and_line(ending: str, tmp_path: Path) -> None:
    path = write_compressed(tmp_path / "x.tsv", b"a\tb\nc\xe4\td\n", ending)
    assert corpus_error([path]).startswith(f"{path}:2: not UTF-8 (byte 2 of the line)")


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t \n", b"a\t\n", b"\tb\n", b"\xef\xbb\xbf"], ids=repr)
def test_corpus_without_a_complete_pair_is_refused(content: bytes, tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.tsv", content)
    with pytest.raises(UserError):
        read_all_pairs([path])


def test_empty_corpus_error_names_the_files(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.tsv", b"")
    assert corpus_error([path]) == f"{path}: no pairs in there, nothing to work with"
    two = [write_file(tmp_path / "x.en", b"\n"), write_file(tmp_path / "x.de", b"y\n")]
    assert corpus_error(two) == f"{two[0]} and {two[1]}: no pairs in there, nothing to work with"


def test_pair_with_an_empty_side_is_kept_among_others(tmp_path: Path) -> None:
    two = [write_file(tmp_path / "x.en", b"\na\n"), write_file(tmp_path / "x.de", b"y\nb\n")]
    assert read_all_pairs(two) == [Pair("", "y"), Pair("a", "b")]


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_damaged_compressed_file_is_refused(ending: str, tmp_path: Path) -> None:
    content = "".join(f"{number * 7919 % 1000}\t{number * 104729 % 1000}\n" for number in range(2000)).encode()
    whole = PACKED[ending](content)
    flipped = bytearray(whole)
    for offset in range(len(whole) // 2, len(whole) // 2 + 40):
        flipped[offset] ^= 0xFF
    for damaged in (whole[: len(whole) // 2], whole[:-4], bytes(flipped), b"not packed at all\n"):
        path = write_file(tmp_path / f"x.tsv{ending}", damaged)
        assert corpus_error([path]).startswith(f"{path} is damaged, it cannot be decompressed")
    path = write_file(tmp_path / f"x.tsv{ending}", whole)
    assert len(read_all_pairs([path])) == 2000


@COMPRESSIONS
def test_byte_order_mark_at_the_file_start_is_removed(ending: str, tmp_path: Path) -> None:
    path = write_compressed(tmp_path / "x.tsv", b"\xef\xbb\xbfa\tb\n\xef\xbb\xbfc\td\n", ending)
    assert read_all_pairs([path]) == [Pair("a", "b"), Pair("\ufeffc", "d")]


def test_windows_line_endings_are_removed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.tsv", b"a\tb\r\nc\td\r\n")
    assert read_all_pairs([path]) == [Pair("a", "b"), Pair("c", "d")]
    two = [write_file(tmp_path / "x.en", b"a\r\nc"), write_file(tmp_path / "x.de", b"b\nd\r\n")]
    assert read_all_pairs(two) == [Pair("a", "b"), Pair("c", "d")]


@given(written=st.lists(LINES, max_size=6))
def test_only_a_line_feed_ends_a_line(written: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes("".join(line + "\n" for line in ["", *written]).encode())
    assert list(iterate_lines(path)) == ["", *written]


@pytest.mark.parametrize("separator", list(OTHER_LINE_SEPARATORS), ids=ascii)
def test_other_line_separators_keep_two_files_aligned(separator: str, tmp_path: Path) -> None:
    source = write_file(tmp_path / "x.en", f"a{separator}b\nc\n".encode())
    target = write_file(tmp_path / "x.de", b"1\n2\n")
    assert read_all_pairs([source, target]) == [Pair(f"a{separator}b", "1"), Pair("c", "2")]


@given(rows=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), LINES), min_size=1, max_size=5))
def test_any_text_survives_jsonl(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    for ascii_only in (True, False):
        documents = (json.dumps({"source": a, "target": b}, ensure_ascii=ascii_only) for a, b in rows)
        path.write_bytes("\n".join(documents).encode())
        assert list(iterate_pairs([path])) == [Pair(*row) for row in rows]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5000, "not JSON"),
        ("[]", "not a pair"),
        ("3", "not a pair"),
        ('{"source": "a"}', "not a pair"),
        ('{"source": "a", "target": 3}', "not a pair"),
        ('{"source": "a", "target": null}', "not a pair"),
        ('{"source": "a", "target": "\\ud800"}', "'\\ud800' has half a character"),
    ],
    ids=[
        "unfinished",
        "deeply nested",
        "huge number",
        "list",
        "number",
        "no target",
        "target is a number",
        "target is null",
        "lone surrogate",
    ],
)
def test_invalid_jsonl_error_names_the_line(line: str, message: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n'.encode())
    assert corpus_error([path]).startswith(f"{path}:2: {message}")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.tsv", b"a\xed\xa0\x80\tb\n"),
        ("x.jsonl", b'{"source": "a\\ud800", "target": "b"}\n'),
        ("x.tmx", b'<tmx><body><tu><tuv xml:lang="en"><seg>&#xD800;</seg></tuv></tu></body></tmx>'),
    ],
)
def test_half_a_character_is_one_error_with_the_line(name: str, content: bytes, tmp_path: Path) -> None:
    message = corpus_error([write_file(tmp_path / name, content)])
    assert message.startswith(f"{tmp_path / name}:1: ")
    assert "\n" not in message


def test_tsv_line_without_tab_error_names_the_line(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.tsv", b"a\tb\nc d\n")
    assert corpus_error([path]).startswith(f"{path}:2: no tab")


@pytest.mark.parametrize(
    "names", [[], ["a.txt"], ["a.tsv", "b.tsv"], ["a.en", "b.tsv"], ["a.en", "b.de", "c.fr"]], ids=" ".join
)
def test_data_must_be_one_file_of_pairs_or_two_text_files(names: list[str]) -> None:
    with pytest.raises(UserError, match="data is one file that holds pairs"):
        iterate_pairs([Path(name) for name in names])


def test_files_of_pairs_are_recognised_by_suffix() -> None:
    assert all(map(is_bilingual_file, map(Path, ("a.tsv", "a.tsv.gz", "b/a.jsonl.xz"))))
    assert not any(map(is_bilingual_file, map(Path, ("a.en", "tsv", "a.gz", "a.tsv.txt", "x.tsv/a.en"))))


@pytest.mark.parametrize(
    ("names", "expected"),
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
    ids=lambda value: " ".join(value) if isinstance(value, list) else "-".join(value),
)
def test_languages_are_taken_from_file_names(names: list[str], expected: tuple[str, str]) -> None:
    assert find_corpus_languages([Path("some-folder") / name for name in names]) == expected


def test_synthetic_corpus_splits_are_disjoint_and_aligned(tmp_path: Path) -> None:
    counts = write_translation_corpus(tmp_path / "new" / "corpus", 60, seed=3)
    assert counts == {"train": 60, "dev": 6, "test": 6}
    folder = tmp_path / "new" / "corpus"
    assert {path.name for path in folder.iterdir()} == {
        f"{split}.{ending}" for split in counts for ending in ("en", "de", "align")
    }
    seen: set[str] = set()
    for split, count in counts.items():
        corpus = read_all_pairs([folder / f"{split}.en", folder / f"{split}.de"])
        gold = read_gold_alignments(folder / f"{split}.align", corpus)  # raises for a link beyond its sentence
        assert len(corpus) == len(gold) == count
        for links, pair in zip(gold, corpus, strict=True):
            assert links.sure
            assert all(source < len(pair.source.split()) for source, _ in links.possible)
            assert all(target < len(pair.target.split()) for _, target in links.possible)
        assert not seen & {pair.source for pair in corpus}
        seen |= {pair.source for pair in corpus}


def test_synthetic_corpus_is_determined_by_its_seed(tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_translation_corpus(tmp_path / folder, 20, seed)
    first, again, other = (
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("a", "b", "c")
    )
    assert first == again
    assert first["train.en"] != other["train.en"]


def test_synthetic_corpus_of_fewer_than_10_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 10 pairs, not 9"):
        write_translation_corpus(tmp_path, 9)
    assert list(tmp_path.iterdir()) == []
