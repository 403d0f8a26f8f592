"""Damaged files: whatever the bytes, they are read or refused by one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import FORMATS, PACKED

from regard.data.corpus import languages, pairs, read
from regard.errors import UserError

MARKS = [
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
MARKS += [
    b"<!DOCTYPE a [<!ENTITY x 'y'>]>",
    b'<cp hex="d800"/>',
    b'encoding="utf-16"',
    b'xml:lang="fr"',
    b"charset=utf-7",
]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes of a file, some of them changed, left out, put twice, or cut off."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(["change", "mark", "twice", "out", "cut", "bit"]))
        if kind == "change":
            content[start:end] = draw(st.binary(max_size=8))
        elif kind == "mark":
            content[start:start] = draw(st.sampled_from(MARKS))
        elif kind == "twice":
            content[start:start] = content[start:end]
        elif kind == "out":
            del content[start:end]
        elif kind == "cut":
            del content[start:]
        elif start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
    return bytes(content)


def read_or_refused(path: Path) -> None:
    """All that a file can do."""
    for attempt in (lambda: pairs([path]), lambda: list(read([path], "en", "de")), lambda: languages([path])):
        try:
            found = attempt()
        except UserError as error:
            said = str(error)
        else:
            said = "read"
            for pair in found:
                "".join(pair).encode("utf-8")  # half a character would stop a writer later
        assert said
        assert "\n" not in said


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_damaged_files(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data.draw(damaged(FORMATS[name])))
    read_or_refused(path)


@pytest.mark.parametrize("ending", [ending for ending in PACKED if ending])
@given(data=st.data())
def test_damaged_archives(ending: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"pairs.tsv{ending}"
    path.write_bytes(data.draw(damaged(PACKED[ending](FORMATS["pairs.tsv"] * 20))))
    read_or_refused(path)


@pytest.mark.parametrize("name", FORMATS)
@given(content=st.binary(max_size=200))
def test_any_bytes(name: str, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    read_or_refused(path)
