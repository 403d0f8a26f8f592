"""Every format that is read: what its pairs are, against translate-toolkit where that reads it too."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from support.commands import Command, environment
from support.corpora import FORMATS, PACKED, ROWS, TMX, XLIFF1, XLIFF2, compress_zstd, parquet_bytes
from translate.storage.tmx import tmxfile
from translate.storage.xliff import xlifffile

from regard.data.corpus import Pair, holds_pairs, languages, pairs, read, suffix
from regard.data.files import lines
from regard.data.formats.text import unquoted
from regard.data.pair import one_line
from regard.data.sides import distinct, matches, nearest_code
from regard.errors import UserError

PAIRS = [Pair(*row) for row in ROWS]
XML = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="￾￿")).map(one_line)


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def complaint(path: Path, source: str | None = None, target: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        list(read([path], source, target))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_in_every_packing(name: str, ending: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"{name}{ending}", PACKED[ending](FORMATS[name]))
    assert pairs([path]) == PAIRS
    assert holds_pairs(path)
    assert suffix(path) == suffix(Path(name))
    assert pairs([path.rename(tmp_path / f"{name}{ending}".upper())]) == PAIRS


@pytest.mark.parametrize("name", ["pairs.tmx", "pairs.xliff", "pairs2.xlf", "pairs.po", "pairs.tsv"])
@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_damaged_archives_of_every_format(name: str, ending: str, tmp_path: Path) -> None:
    packed = PACKED[ending](FORMATS[name])
    for damage in (packed[: len(packed) // 2], b"not packed"):
        path = written(tmp_path / f"{name}{ending}", damage)
        assert complaint(path).startswith(f"{path} is damaged, it cannot be decompressed: ")


def test_a_zst_file_of_several_frames(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tsv.zst", compress_zstd(b"a\tb\nc") + compress_zstd(b"\td\n"))
    assert pairs([path]) == [Pair("a", "b"), Pair("c", "d")]
    two = [written(tmp_path / "x.en.zst", compress_zstd(b"a\nc\n")), written(tmp_path / "x.de", b"b\nd\n")]
    assert pairs(two) == [Pair("a", "b"), Pair("c", "d")]
    assert languages(two) == ("en", "de")


# TMX


def memory(*units: dict[str, str], srclang: str = "en") -> str:
    """A TMX file."""
    root = etree.Element("tmx", version="1.4")
    etree.SubElement(root, "header", srclang=srclang)
    body = etree.SubElement(root, "body")
    for unit in units:
        element = etree.SubElement(body, "tu")
        for code, text in unit.items():
            variant = etree.SubElement(element, "tuv", {"{http://www.w3.org/XML/1998/namespace}lang": code})
            etree.SubElement(variant, "seg").text = text
    return str(etree.tostring(root, encoding="unicode", pretty_print=True))


@given(rows=st.lists(st.tuples(XML, XML), min_size=1, max_size=5))
def test_tmx_as_translate_toolkit_writes_it(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = tmxfile(sourcelanguage="en")
    for source, target in rows:
        store.addtranslation(source, "en", target, "de")
    path = written(tmp_path_factory.getbasetemp() / "toolkit.tmx", bytes(store))
    assert list(read([path])) == [Pair(*row) for row in rows]


def test_tmx_as_translate_toolkit_reads_it(tmp_path: Path) -> None:
    plain = memory({"en": "a house", "de": "ein Haus"}, {"en": "é < & >", "de": "„ß“"})
    store = tmxfile.parsestring(plain.encode())
    assert pairs([written(tmp_path / "x.tmx", plain)]) == [Pair(unit.source, unit.target) for unit in store.units]


def test_the_header_says_which_language_is_the_source(tmp_path: Path) -> None:
    unit = {"de": "ein Haus", "en-US": "a house"}
    for srclang, found in {
        "en": PAIRS[:1],
        "EN-us": PAIRS[:1],
        "de-DE": [Pair(*PAIRS[0][::-1])],
        "*all*": [Pair(*PAIRS[0][::-1])],
    }.items():
        path = written(tmp_path / "memory.tmx", memory(unit, srclang=srclang))
        assert pairs([path]) == found
    assert languages([path]) == ("de", "en-US")


def test_languages_that_are_asked_for(tmp_path: Path) -> None:
    units = [{"en-US": "house", "de": "Haus", "fr-FR": "maison"}, {"de": "Baum", "fr-FR": "arbre"}]
    path = written(tmp_path / "memory.tmx", memory(*units))
    assert list(read([path], "en", "DE")) == [Pair("house", "Haus")]
    assert list(read([path], "fr", "de")) == [Pair("maison", "Haus"), Pair("arbre", "Baum")]
    assert languages([path], "fr", "de") == ("fr", "de")
    assert complaint(path).startswith(f"{path} holds en-US, de, fr-FR; say which is source and which is target")
    assert complaint(path, "en").startswith(f"{path} holds en-US, de, fr-FR; say which")
    assert complaint(path, "en-GB", "de") == f"{path} has no unit in both en-GB and de; it holds en-US, de, fr-FR"
    assert complaint(path, "es") == f"{path} holds en-US, de, fr-FR, not es; choose among its own languages"


def test_one_language_asked_for_leaves_the_other(tmp_path: Path) -> None:
    path = written(tmp_path / "memory.tmx", memory({"en": "house", "de": "Haus"}))
    assert list(read([path], target="en")) == list(read([path], source="de")) == [Pair("Haus", "house")]


def test_the_name_of_a_memory_counts_where_it_has_those_languages(tmp_path: Path) -> None:
    content = memory({"en": "house", "de": "Haus", "fr": "maison"})
    assert pairs([written(tmp_path / "big_de-fr.tmx", content)]) == [Pair("Haus", "maison")]
    assert languages([tmp_path / "big_de-fr.tmx"]) == ("de", "fr")
    both = memory({"en": "house", "de": "Haus"})
    assert pairs([written(tmp_path / "de-en.tmx", both)]) == [Pair("Haus", "house")]
    assert pairs([written(tmp_path / "de-fr.tmx", both)]) == [Pair("house", "Haus")]


def test_a_third_language_far_behind_is_not_passed_over(tmp_path: Path) -> None:
    units = [{"en": f"{number}", "de": f"{number}"} for number in range(1500)]
    path = written(tmp_path / "memory.tmx", memory(*units, {"en": "x", "fr": "y"}))
    assert "holds en, de, fr; say which" in complaint(path)
    assert complaint(path).startswith(f"{path}:")
    assert len(list(read([path], "en", "de"))) == 1500
    assert list(read([path], "en", "fr")) == [Pair("x", "y")]


def test_a_wider_code_takes_the_narrow_ones_in(tmp_path: Path) -> None:
    units = [{"en-US": "1", "de": "2"}, {"en": "3", "de-AT": "4"}]
    path = written(tmp_path / "memory.tmx", memory(*units))
    assert pairs([path]) == [Pair("1", "2"), Pair("3", "4")]
    many = [{"en-US": "1", "de": "2"}] * 1200
    assert len(pairs([written(tmp_path / "long.tmx", memory(*many, {"en": "3", "de": "4"}))])) == 1201


def test_units_of_one_language(tmp_path: Path) -> None:
    path = written(tmp_path / "memory.tmx", memory({"en": "house"}, {"en": "tree"}))
    assert complaint(path) == f"{path} holds one language only (en); a pair has two"
    path = written(tmp_path / "memory.tmx", memory({"en": "house"}, {"de": "Baum"}))
    assert complaint(path) == f"{path} has no unit in both en and de; it holds en, de"
    assert list(read([written(tmp_path / "memory.tmx", memory())])) == []


def test_codes_of_the_document_are_no_text(tmp_path: Path) -> None:
    segment = (
        'a<bpt i="1">&lt;b><sub>title</sub></bpt>b<hi>c<ph/><hi>d</hi></hi><ept i="1"/>e<it pos="begin">x</it>f'
        "<ut>x</ut><!-- no --><?no no?>g"
    )
    content = memory({"en": "SEG", "de": "x"}).replace("SEG", segment)
    assert pairs([written(tmp_path / "x.tmx", content)]) == [Pair("abc defg", "x")]


@given(st.text(st.sampled_from("a\" '"), max_size=12))
def test_cells_are_what_a_spreadsheet_was_given(text: str) -> None:
    out = io.StringIO()
    csv.writer(out, csv.excel_tab).writerow([text, "x"])
    assert unquoted(out.getvalue().split("\t")[0]) == text
    if '""' not in text[1:-1]:
        assert unquoted(text) == text, "which no spreadsheet has written"


def test_quotes_of_the_texts_own_stay(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", '"Sit"\t"Sitz"\n"a ""b"" c"\tx "y"\n"a" and "b"\t""\n')
    assert pairs([path]) == [Pair('"Sit"', '"Sitz"'), Pair('a "b" c', 'x "y"'), Pair('"a" and "b"', '""')]


def test_a_file_in_utf_16_is_told_how_to_become_another(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes("a\tb\n".encode("utf-16"))
    assert complaint(path).endswith("convert the file first: iconv -f utf-16 -t utf-8")


def test_words_with_a_code_between_them_stay_two(tmp_path: Path) -> None:
    segment = 'Open it<ph x="1">&lt;br/&gt;</ph>Close it<ph/>. <ph/>b<ph/><ph/>c'
    content = memory({"en": "SEG", "de": "x"}).replace("SEG", segment)
    assert pairs([written(tmp_path / "x.tmx", content)]) == [Pair("Open it Close it. b c", "x")]


def test_languages_that_differ_by_region_alone_are_two(tmp_path: Path) -> None:
    units = [{"en-US": "a", "de-DE": "b"}, {"de-AT": "c", "en-GB": "d"}, {"EN-us": "e", "de-CH": "f"}]
    path = written(tmp_path / "memory.tmx", memory(*units, srclang="en-US"))
    every = [Pair("a", "b"), Pair("d", "c"), Pair("e", "f")]
    assert pairs([path]) == list(read([path], None, "de")) == every
    assert list(read([path], None, "de-DE")) == every[:1]
    third = written(tmp_path / "third.tmx", memory(*units, {"fr-FR": "g"}))
    assert "holds en-US, de-DE, de-AT, en-GB, EN-us, de-CH, fr-FR; say which" in complaint(third)
    scripts = written(tmp_path / "scripts.tmx", memory({"en": "a", "zh-Hans": "b", "zh-Hant": "c"}))
    assert "holds en, zh-Hans, zh-Hant; say which" in complaint(scripts)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "iso-8859-1", "utf-8-sig"])
def test_encodings_of_xml(encoding: str, tmp_path: Path) -> None:
    content = memory({"en": "é", "de": "ß"})
    declared = f'<?xml version="1.0" encoding="{"utf-8" if "sig" in encoding else encoding}"?>{content}'
    assert pairs([written(tmp_path / "x.tmx", declared.encode(encoding))]) == [Pair("é", "ß")]


def test_old_memories_name_languages_by_lang(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tmx", memory({"en": "a", "de": "b"}).replace("xml:lang", "lang"))
    assert pairs([path]) == [Pair("a", "b")]
    broken = written(tmp_path / "x.tmx", memory({"en": "a", "de": "b"}).replace('xml:lang="de"', ""))
    assert complaint(broken) == f"{broken}:8: a <tuv> without xml:lang; each says its language"


def test_namespaces_and_line_breaks(tmp_path: Path) -> None:
    content = memory({"en": "\n  two\r\n\tlines \u00a0 ", "de": "x"}).replace(
        "<tmx ", '<tmx xmlns="http://x.org/tmx14" '
    )
    assert pairs([written(tmp_path / "x.tmx", content)]) == [Pair("two lines \u00a0", "x")]


def test_damaged_memories(tmp_path: Path) -> None:
    cut = written(tmp_path / "x.tmx", TMX[: TMX.index("ist alt")])
    assert complaint(cut).startswith(
        f"{cut}:{len(TMX[: TMX.index('ist alt')].splitlines())}: damaged or cut off, the XML cannot be read: "
    )
    wrong = written(tmp_path / "x.tmx", TMX.replace("house", "h\x01use"))
    assert complaint(wrong).startswith(f"{wrong}:8: damaged")
    latin = written(tmp_path / "x.tmx", TMX.replace("Haus", "Häus").replace("–", "-").encode("latin-1"))
    assert complaint(latin).startswith(f"{latin}:9: damaged")
    other = written(tmp_path / "x.tmx", "<html><body/></html>")
    assert complaint(other) == f"{other} is XML, but its first element is <html> and not <tmx>"
    for content in (b"", b"a\tb\n", b"\x00\x01"):
        assert complaint(written(tmp_path / "x.tmx", content)).startswith(f"{tmp_path / 'x.tmx'}:1: damaged")


def test_xml_opens_no_other_file_and_expands_nothing(tmp_path: Path) -> None:
    secret = written(tmp_path / "secret.txt", "secret")
    entity = f'<!DOCTYPE tmx [<!ENTITY x SYSTEM "file://{secret}">]>'
    path = written(tmp_path / "x.tmx", entity + memory({"en": "a SEG", "de": "b"}).replace("SEG", "&x;"))
    assert complaint(path) == f"{path}:6: &x; is an entity of the file's own, which is not read; write its text"
    bomb = '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    path = written(tmp_path / "x.tmx", f"{bomb}]>" + memory({"en": "SEG", "de": "b"}).replace("SEG", "&i;"))
    assert "entity" in complaint(path)


STREAM = """
import resource, sys
from pathlib import Path
from regard.data.corpus import read
pairs = read([Path(sys.argv[1])])
for _ in range(2000): next(pairs)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = 2000 + sum(1 for _ in pairs)
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["tmx", "xliff", "parquet"])
def test_memory_does_not_grow_with_the_file(kind: str, tmp_path: Path) -> None:
    count, text = 30_000, "some words that take room " * 12
    path = tmp_path / f"large.{kind}"
    if kind == "parquet":
        rows = [f"{text}{number * 7919}" for number in range(count)]
        written(path, parquet_bytes({"source": rows, "target": rows}, use_dictionary=False, compression="none"))
    elif kind == "tmx":
        written(path, memory(*({"en": f"{text}{number}", "de": text} for number in range(count))))
    else:
        unit = XLIFF1[XLIFF1.index("<group") : XLIFF1.index("</group>")] + "</group>"
        written(path, XLIFF1.replace("</body>", unit.replace("tree", text) * count + "</body>", 1))
    assert path.stat().st_size > 14_000_000
    done = subprocess.run(
        [sys.executable, "-c", STREAM, str(path)], env=environment(), capture_output=True, text=True, check=True
    )
    read_pairs, kilobytes = map(int, done.stdout.split())
    assert read_pairs >= count
    assert kilobytes < 6_000, "far less than the file, whatever its size"


# XLIFF


@pytest.mark.parametrize("content", [XLIFF1, XLIFF1.replace(' xmlns="urn:oasis:names:tc:xliff:document:1.2"', "")])
def test_xliff_1(content: str, tmp_path: Path) -> None:
    path = written(tmp_path / "memory.xlf", content)
    assert pairs([path]) == PAIRS
    assert languages([path]) == ("en", "de")


def test_xliff_as_translate_toolkit_reads_it(tmp_path: Path) -> None:
    plain = XLIFF1.replace('<g id="1">tree</g> is<x id="2"/> <mrk mtype="seg">old</mrk>', "tree is old")
    plain = plain.replace('<ph id="3">&lt;br/></ph>\n          ', " ")
    kept = [
        unit
        for unit in xlifffile.parsestring(plain.encode()).units
        if unit.target
        and unit.xmlelement.get("translate") != "no"
        and unit.get_state_n() >= 0
        and unit.source != "a draft"
    ]
    assert pairs([written(tmp_path / "x.xlf", plain)]) == [Pair(unit.source, unit.target) for unit in kept]


@given(rows=st.lists(st.tuples(XML.filter(bool), XML.filter(bool)), min_size=1, max_size=5))
def test_xliff_as_translate_toolkit_writes_it(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = xlifffile(sourcelanguage="en", targetlanguage="de")
    for source, target in rows:
        unit = store.addsourceunit(source)
        unit.target = target
    path = written(tmp_path_factory.getbasetemp() / "toolkit.xlf", bytes(store))
    assert list(read([path])) == [Pair(*row) for row in rows]


def test_xliff_is_read_the_other_way_round_where_that_is_asked_for(tmp_path: Path) -> None:
    back = [Pair(*pair[::-1]) for pair in PAIRS]
    for content in (XLIFF1, XLIFF2):
        path = written(tmp_path / "x.xliff", content)
        assert (
            list(read([path], "de", "en")) == list(read([path], source="de")) == list(read([path], target="en")) == back
        )
        assert list(read([path], "en", "de")) == list(read([path], source="en")) == PAIRS
        assert languages([path], "de", "en") == ("de", "en")
        assert complaint(path, "en", "fr").endswith("holds en, de, not en and fr; choose among its own languages")
        named = written(tmp_path / "de-en.xliff", content)
        assert pairs([named]) == back
        assert pairs([named.rename(tmp_path / "fr-en.xliff")]) == PAIRS


def test_each_file_of_an_xliff_has_its_own_languages(tmp_path: Path) -> None:
    first, second = XLIFF1.split('<file original="b"')
    other = second.replace('target-language="de"', "").replace('source-language="en"', 'source-language="en-GB"')
    path = written(tmp_path / "x.xlf", f'{first}<file original="b"{other}')
    assert pairs([path]) == PAIRS
    assert list(read([path], "en", "de")) == PAIRS
    mixed = written(tmp_path / "x.xlf", XLIFF1.replace('"de"', '"fr"', 1))
    assert complaint(mixed, "en", "de").startswith(f"{mixed}:6 holds en, fr, not en and de;")


def test_what_nobody_is_to_translate_is_left_out(tmp_path: Path) -> None:
    inside = (
        '<group translate="yes"><unit id="9"><segment><source>in</source><target>ein</target></segment></unit></group>'
    )
    content = XLIFF2.replace("</group>", f"{inside}</group>", 1)
    assert Pair("in", "ein") in pairs([written(tmp_path / "x.xlf", content)])
    assert Pair("regard", "regard") not in pairs([tmp_path / "x.xlf"])


@pytest.mark.parametrize(
    ("code", "text"),
    [("41", "A"), ("0000", "\x00"), ("1F600", "😀"), ("d800", None), ("", None), ("x", None), ("110000", None)],
)
def test_a_character_by_its_number(code: str, text: str | None, tmp_path: Path) -> None:
    path = written(tmp_path / "x.xlf", XLIFF2.replace('hex="0020"', f'hex="{code}"'))
    if text is None:
        assert complaint(path) == f'{path}:7: <cp hex="{code}"/> is no character'
    else:
        assert pairs([path])[1].target == f"der Baum ist{text}alt"


# PO


def test_plurals_of_po(tmp_path: Path) -> None:
    head = 'msgid ""\nmsgstr "Language: {}\\nContent-Type: text/plain; charset=UTF-8\\n"\n\n'
    message = 'msgid "%d file"\nmsgid_plural "%d files"\n'
    polish = 'msgstr[0] "%d plik"\nmsgstr[1] "%d pliki"\nmsgstr[2] "%d plików"\n'
    path = written(tmp_path / "x.po", head.format("pl") + message + polish)
    assert pairs([path]) == [Pair("%d file", "%d plik"), Pair("%d files", "%d plików")]
    path = written(tmp_path / "x.po", head.format("ja") + message + 'msgstr[0] "ファイル%d個"\n')
    assert pairs([path]) == [Pair("%d file", "ファイル%d個"), Pair("%d files", "ファイル%d個")]
    assert list(read([path], "ja", "en")) == [Pair(*pair[::-1]) for pair in pairs([path])]
    assert complaint(path, "en", "de").startswith(f"{path} holds ja, not en and de")


def test_po_in_another_encoding(tmp_path: Path) -> None:
    content = FORMATS["pairs.po"].decode().replace("UTF-8", "ISO-8859-1").replace("–", "ß")
    path = written(tmp_path / "x.po", content.encode("latin-1"))
    assert pairs([path])[-1] == Pair("is it?", "ist es so ß nicht?")


def test_damaged_po(tmp_path: Path) -> None:
    path = written(tmp_path / "x.po", 'msgid "a"\nmsgstr "b"\nmsgid "c\n')
    assert complaint(path).startswith(f"{path}:3: damaged or not a PO file: ")
    path = written(tmp_path / "x.po", FORMATS["pairs.po"].replace("–".encode(), b"\xff"))
    assert complaint(path) == f"{path}:32: not utf-8, as the header says it is"
    path = written(tmp_path / "x.po", FORMATS["pairs.po"].replace(b"UTF-8", b"no-such"))
    assert "unknown encoding: no-such" in complaint(path)


def test_po_without_translate_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "translate.storage.poparser", None)
    path = written(tmp_path / "x.po", FORMATS["pairs.po"])
    assert complaint(path) == f"{path}: PO files need translate-toolkit; install it with pip install 'regard[formats]'"


# Parquet and JSONL

LEFT, RIGHT = [row[0] for row in ROWS], [row[1] for row in ROWS]
STRUCT = pyarrow.array(
    [{"de": right, "en": left, "fr": None} for left, right in ROWS],
    pyarrow.struct([("de", pyarrow.string()), ("en", pyarrow.string()), ("fr", pyarrow.string())]),
)


@pytest.mark.parametrize(
    "columns",
    [
        {"source": LEFT, "target": RIGHT, "id": [1, 2, 3]},
        {"en": LEFT, "de": RIGHT},
        {"id": ["x", "y", "z"], "en": pyarrow.array(LEFT, pyarrow.large_string()), "de": RIGHT},
        {"en": pyarrow.array(LEFT).dictionary_encode(), "de": RIGHT},
        {"translation": [{"en": left, "de": right} for left, right in ROWS], "id": [1, 2, 3]},
    ],
)
def test_columns_of_parquet(columns: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet", parquet_bytes(columns))
    assert pairs([path]) == list(read([path], "en", "de")) == PAIRS


def test_languages_of_parquet(tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet", parquet_bytes({"translation": STRUCT}))
    assert "holds de, en, fr; say which" in complaint(path)
    assert list(read([path], "en", "de")) == PAIRS
    assert list(read([path], "de", "en")) == [Pair(*pair[::-1]) for pair in PAIRS]
    assert list(read([path], "en", "fr")) == [Pair(left, "") for left in LEFT]
    assert complaint(path, "en", "es") == f"{path} holds de, en, fr, not en and es; choose among its own languages"
    named = path.rename(tmp_path / "en-de.parquet")
    assert pairs([named]) == PAIRS
    assert languages([named]) == ("en", "de")
    path = written(tmp_path / "x.parquet", parquet_bytes({"source": LEFT, "target": RIGHT}))
    assert list(read([path], "pl", "cs")) == PAIRS
    assert languages([path]) == ("source", "target")


def test_rows_that_lack_something(tmp_path: Path) -> None:
    rows = pyarrow.array([{"en": "a", "de": None}, None, {"en": None, "de": "b"}])
    path = written(tmp_path / "x.parquet", parquet_bytes({"translation": rows}))
    assert list(read([path], "en", "de")) == [Pair("a", ""), Pair("", ""), Pair("", "b")]


def test_no_parquet(tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet", parquet_bytes({"text": LEFT, "number": [1, 2, 3]}))
    assert complaint(path).startswith(f"{path} has the columns text, number; pairs are in `source` and `target`")
    whole = FORMATS["pairs.parquet"]
    for content in (b"", b"PAR1", b"a\tb\n", whole[:-9], whole[20:], whole[:30] + bytes(60) + whole[90:]):
        path = written(tmp_path / "x.parquet", content)
        assert complaint(path).startswith(f"{path} is damaged or not a Parquet file: ")
    text = pyarrow.array([b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    path = written(tmp_path / "x.parquet", parquet_bytes({"source": text, "target": ["a"]}))
    assert complaint(path).startswith(f"{path} is damaged")


@pytest.mark.parametrize(
    "row",
    [
        lambda left, right: {"id": 3, "en": left, "de": right},
        lambda left, right: {"translation": {"en": left, "de": right}},
        lambda left, right: {"en_GB": left, "de-DE": right, "en-US-x": 3},
    ],
)
def test_languages_of_jsonl(row: Callable[[str, str], object], tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", "".join(json.dumps(row(*pair)) + "\n" for pair in ROWS))
    assert pairs([path]) == list(read([path], "en", "de")) == PAIRS
    assert list(read([path], "de", "en")) == [Pair(*pair[::-1]) for pair in PAIRS]
    assert complaint(path, "en", "fr").startswith(f"{path}:1 holds ")
    assert [code[:2] for code in languages([path])] == ["en", "de"]


def test_a_line_of_jsonl_that_lacks_a_language(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", '{"en": "a", "de": "b"}\n{"en": "c"}\n')
    assert complaint(path).startswith(f'{path}:2: not a pair, there is no text under "de"')


# codes


def test_matching_codes() -> None:
    assert matches("en-US", "EN")
    assert matches("zh_Hans", "zh-hans")
    assert not matches("en", "en-US")
    assert not matches("eng", "en")
    assert distinct(["en-US", "de", "en", "en-GB", "de"]) == ["en", "de"]
    assert distinct(["pt-BR", "pt-PT"]) == ["pt-BR", "pt-PT"]
    assert nearest_code(["en-US", "EN"], "en") == "EN"
    assert nearest_code(["en-US", "en-GB"], "en") == "en-US"
    assert nearest_code(["de"], "en") is None


# pipes


def through_a_pipe(path: Path, content: bytes) -> Path:
    """A named pipe with somebody who writes to it once."""
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_formats_through_pipes(name: str, tmp_path: Path) -> None:
    assert pairs([through_a_pipe(tmp_path / name, FORMATS[name])]) == PAIRS


@pytest.mark.parametrize("packing", ["", *PACKED])
@pytest.mark.parametrize("name", FORMATS)
def test_a_pipe_without_a_name_is_known_by_its_first_bytes(name: str, packing: str, tmp_path: Path) -> None:
    content = PACKED[packing](FORMATS[name]) if packing else FORMATS[name]
    assert pairs([through_a_pipe(tmp_path / "63", content)]) == PAIRS


def test_tab_separated_pairs_are_taken_for_nothing_else(tmp_path: Path) -> None:
    rows = [("{a}", "b"), ("# a", "b"), ("<b>a</b>", "b"), ("msgid x", "b"), ("\ufeffa", "b")]
    for number, row in enumerate(rows):
        found = pairs([through_a_pipe(tmp_path / str(number), "\t".join(row).encode())])
        assert found == [Pair(row[0].removeprefix("\ufeff"), row[1])]


def test_a_memory_in_utf_16_through_a_pipe(tmp_path: Path) -> None:
    memory = FORMATS["pairs.tmx"].decode().replace("UTF-8", "UTF-16")
    assert pairs([through_a_pipe(tmp_path / "63", memory.encode("utf-16"))]) == PAIRS


def test_what_is_wrong_in_a_pipe_is_said_of_the_pipe(tmp_path: Path) -> None:
    pipe = through_a_pipe(tmp_path / "63", b'{"source": "a", "target": "b"}\n[]\n')
    assert complaint(pipe).startswith(f"{pipe}:2: not a pair")
    cut = through_a_pipe(tmp_path / "64", PACKED[".gz"](FORMATS["pairs.tsv"])[:-9])
    assert complaint(cut).startswith(f"{cut} is damaged, it cannot be decompressed")


def test_two_pipes_of_different_length(tmp_path: Path) -> None:
    left, right = through_a_pipe(tmp_path / "1", b"a\n" * 3), through_a_pipe(tmp_path / "2", b"b\n" * 500)
    with pytest.raises(UserError, match=r"1 has 3 lines and .*2 has 500;"):
        list(read([left, right]))


def test_standard_input(regard: Command) -> None:
    done = regard("data", "inspect", "-", "--json", input=FORMATS["pairs.tsv"])
    assert json.loads(done.stdout)["pairs"] == 3
    wrong = regard("data", "inspect", "-", input="a\tb\nc\n")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "regard: standard input:2: no tab; a line of a .tsv file is source, tab, target\n"


def test_process_substitution(tmp_path: Path) -> None:
    written(tmp_path / "x.tsv.gz", PACKED[".gz"](FORMATS["pairs.tsv"]))
    command = f"{sys.executable} -m regard data inspect <(zcat x.tsv.gz) --json"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, check=True)
    assert json.loads(done.stdout)["pairs"] == 3


def test_lines_of_a_compressed_pipe(tmp_path: Path) -> None:
    assert list(lines(through_a_pipe(tmp_path / "x.gz", PACKED[".gz"](b"a\nb")))) == ["a", "b"]


def test_reading_imports_only_what_it_needs() -> None:
    code = (
        "import sys, regard.cli.app, regard.data.corpus\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'lxml', 'translate', 'sacrebleu'} & set(sys.modules)\n"
        "sys.exit(f'imported at the start: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


NAMELESS = {
    "x.tsv": "a\tb\n",
    "x.jsonl": '{"source": "a", "target": "b"}\n',
    "x.po": 'msgid "a"\nmsgstr "b"\n',
    "x.xlf": '<xliff version="1.2"><file><trans-unit><source>a</source><target>b</target></trans-unit></file></xliff>',
}


@pytest.mark.parametrize("name", [*NAMELESS, "x.parquet", "-", "two files"])
@pytest.mark.parametrize("verb", [["inspect"], ["clean", "--out", "out.tsv"]], ids=["inspect", "clean"])
def test_a_language_is_not_chosen_where_the_file_names_none(
    regard: Command, tmp_path: Path, name: str, verb: list[str]
) -> None:
    written(tmp_path / "x.parquet", parquet_bytes({"source": ["a"], "target": ["b"]}))
    for path, content in {**NAMELESS, "x.en": "a\n", "x.de": "b\n"}.items():
        (tmp_path / path).write_text(content, encoding="utf-8")
    data = ["x.en", "x.de"] if name == "two files" else [name]
    given = NAMELESS["x.tsv"] if name == "-" else None
    done = regard("data", verb[0], *data, *verb[1:], "--source", "en", "--target", "de", input=given)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert (
        "names no languages, so that --source and --target have nothing to choose from: leave them out" in done.stderr
    )
    assert regard("data", verb[0], *data, *verb[1:], input=given).returncode == 0
    if name != "-":
        assert list(read([tmp_path / path for path in data], "en", "de")) == [Pair("a", "b")], "as training calls them"
