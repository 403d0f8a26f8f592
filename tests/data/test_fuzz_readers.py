"""Fuzzing of corpus readers: any bytes are read or refused with a one-line message."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import FORMATS, PACKED

from regard.data.readers.dispatch import find_corpus_languages, iterate_pairs, read_all_pairs
from regard.errors import UserError

INSERTIONS = [
    b"\x00",
    b"\xff",
    b"\t",
    b"\n",
    b"<",
    b">",
    b"&x;",
    b"</tu>",
    b"]]>",
    b'"',
    b"{",
    b"msgid",
    b"\xef\xbb\xbf",
    b"\x80",
]
INSERTIONS += [
    b"<!DOCTYPE a [<!ENTITY x 'y'>]>",
    b'<cp hex="d800"/>',
    b'encoding="utf-16"',
    b'xml:lang="fr"',
    b"charset=utf-7",
]


@st.composite
def damaged_files(draw: st.DrawFn, whole: bytes) -> bytes:
    """Copies of a file with ranges changed, inserted, doubled, deleted or cut off, or bits flipped."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(["change", "insert", "double", "delete", "cut", "bit"]))
        if kind == "change":
            content[start:end] = draw(st.binary(max_size=8))
        elif kind == "insert":
            content[start:start] = draw(st.sampled_from(INSERTIONS))
        elif kind == "double":
            content[start:start] = content[start:end]
        elif kind == "delete":
            del content[start:end]
        elif kind == "cut":
            del content[start:]
        elif start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
    return bytes(content)


def check_read_or_refused(path: Path) -> None:
    for attempt in (
        lambda: read_all_pairs([path]),
        lambda: list(iterate_pairs([path], "en", "de")),
        lambda: find_corpus_languages([path]),
    ):
        try:
            found = attempt()
        except UserError as error:
            message = str(error)
        else:
            message = "read"
            for pair in found:
                "".join(pair).encode("utf-8")  # fails for a lone surrogate
        assert message
        assert "\n" not in message


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_damaged_corpus_file_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data.draw(damaged_files(FORMATS[name])))
    check_read_or_refused(path)


@pytest.mark.parametrize("ending", [ending for ending in PACKED if ending])
@given(data=st.data())
def test_damaged_compressed_corpus_is_read_or_refused(
    ending: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"pairs.tsv{ending}"
    path.write_bytes(data.draw(damaged_files(PACKED[ending](FORMATS["pairs.tsv"] * 20))))
    check_read_or_refused(path)


@pytest.mark.parametrize("name", FORMATS)
@given(content=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(name: str, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    check_read_or_refused(path)
