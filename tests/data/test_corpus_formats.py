"""Corpus formats: the pairs that are read from each, compared with translate-toolkit where it supports the format."""

from __future__ import annotations

import csv
import io
import json
import os
import re
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
from support.combinations import each_value
from support.commands import Command, environment
from support.corpora import (
    FORMATS,
    PACKED,
    ROWS,
    TMX,
    XLIFF1,
    XLIFF2,
    compress_zstd,
    corpus_error,
    parquet_bytes,
)
from support.files import write_file
from translate.storage.tmx import tmxfile
from translate.storage.xliff import xlifffile

from regard.data.languages import (
    are_different_languages,
    deduplicate_languages,
    find_matching_code,
    matches_language,
    merge_regions,
    normalize_language_code,
)
from regard.data.readers.dispatch import (
    find_corpus_languages,
    find_format_suffix,
    is_bilingual_file,
    iterate_pairs,
    open_rows,
    read_all_pairs,
)
from regard.data.readers.text import (
    Pair,
    collapse_whitespace,
    iterate_json_lines,
    iterate_lines,
    iterate_tsv_rows,
    number_lines,
    unquote_cell,
)
from regard.errors import UserError

PAIRS = [Pair(*row) for row in ROWS]
XML_CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")
XML_TEXTS = st.text(XML_CHARACTERS).map(collapse_whitespace)


@pytest.mark.parametrize("ending", PACKED, ids=lambda ending: ending or "uncompressed")
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_with_every_compression(name: str, ending: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / f"{name}{ending}", PACKED[ending](FORMATS[name]))
    assert read_all_pairs([path]) == PAIRS
    assert is_bilingual_file(path)
    assert find_format_suffix(path) == find_format_suffix(Path(name))
    assert read_all_pairs([path.rename(tmp_path / f"{name}{ending}".upper())]) == PAIRS


@pytest.mark.parametrize("name", ["pairs.tmx", "pairs.xliff", "pairs2.xlf", "pairs.po", "pairs.tsv"])
@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_damaged_compressed_file_is_refused(name: str, ending: str, tmp_path: Path) -> None:
    packed = PACKED[ending](FORMATS[name])
    for damage in (packed[: len(packed) // 2], b"not packed"):
        path = write_file(tmp_path / f"{name}{ending}", damage)
        assert corpus_error(path).startswith(f"{path} is damaged, it cannot be decompressed: ")


def test_zst_file_of_several_frames_is_read_whole(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.tsv.zst", compress_zstd(b"a\tb\nc") + compress_zstd(b"\td\n"))
    assert read_all_pairs([path]) == [Pair("a", "b"), Pair("c", "d")]
    two = [write_file(tmp_path / "x.en.zst", compress_zstd(b"a\nc\n")), write_file(tmp_path / "x.de", b"b\nd\n")]
    assert read_all_pairs(two) == [Pair("a", "b"), Pair("c", "d")]
    assert find_corpus_languages(two) == ("en", "de")


# TMX


def make_tmx(*units: dict[str, str], srclang: str = "en") -> str:
    """Return a TMX file; a unit maps language codes to texts."""
    root = etree.Element("tmx", version="1.4")
    etree.SubElement(root, "header", srclang=srclang)
    body = etree.SubElement(root, "body")
    for unit in units:
        element = etree.SubElement(body, "tu")
        for code, text in unit.items():
            variant = etree.SubElement(element, "tuv", {"{http://www.w3.org/XML/1998/namespace}lang": code})
            etree.SubElement(variant, "seg").text = text
    return str(etree.tostring(root, encoding="unicode", pretty_print=True))


@given(rows=st.lists(st.tuples(XML_TEXTS, XML_TEXTS), min_size=1, max_size=5))
def test_tmx_written_by_translate_toolkit_is_read(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = tmxfile(sourcelanguage="en")
    for source, target in rows:
        store.addtranslation(source, "en", target, "de")
    path = write_file(tmp_path_factory.getbasetemp() / "toolkit.tmx", bytes(store))
    assert list(iterate_pairs([path])) == [Pair(*row) for row in rows]


def test_tmx_pairs_equal_those_of_translate_toolkit(tmp_path: Path) -> None:
    plain = make_tmx({"en": "a house", "de": "ein Haus"}, {"en": "é < & >", "de": "„ß“"})
    store = tmxfile.parsestring(plain.encode())
    assert read_all_pairs([write_file(tmp_path / "x.tmx", plain)]) == [
        Pair(unit.source, unit.target) for unit in store.units
    ]


def test_tmx_header_determines_the_source_language(tmp_path: Path) -> None:
    unit = {"de": "ein Haus", "en-US": "a house"}
    for srclang, expected in {
        "en": PAIRS[:1],
        "EN-us": PAIRS[:1],
        "de-DE": [Pair(*PAIRS[0][::-1])],
        "*all*": [Pair(*PAIRS[0][::-1])],
    }.items():
        path = write_file(tmp_path / "memory.tmx", make_tmx(unit, srclang=srclang))
        assert read_all_pairs([path]) == expected
    assert find_corpus_languages([path]) == ("de", "en-US")


def test_tmx_source_and_target_language_can_be_chosen(tmp_path: Path) -> None:
    units = [{"en-US": "house", "de": "Haus", "fr-FR": "maison"}, {"de": "Baum", "fr-FR": "arbre"}]
    path = write_file(tmp_path / "memory.tmx", make_tmx(*units))
    assert list(iterate_pairs([path], "en", "DE")) == [Pair("house", "Haus")]
    assert list(iterate_pairs([path], "fr", "de")) == [Pair("maison", "Haus"), Pair("arbre", "Baum")]
    assert find_corpus_languages([path], "fr", "de") == ("fr", "de")
    assert corpus_error(path).startswith(f"{path} holds en-US, de, fr-FR; say which is source and which is target")
    chosen = f"{path} holds en-US, de, fr-FR; say which is target by code (--target, in training data.target=; "
    assert corpus_error(path, "en").startswith(chosen)  # not --source, which was given
    assert corpus_error(path, "en-GB", "de") == f"{path} has no unit in both en-GB and de; it holds en-US, de, fr-FR"
    assert corpus_error(path, "es") == f"{path} holds en-US, de, fr-FR, not es"


def test_choosing_one_language_implies_the_other(tmp_path: Path) -> None:
    path = write_file(tmp_path / "memory.tmx", make_tmx({"en": "house", "de": "Haus"}))
    assert (
        list(iterate_pairs([path], target="en")) == list(iterate_pairs([path], source="de")) == [Pair("Haus", "house")]
    )


def test_tmx_file_name_chooses_among_its_languages(tmp_path: Path) -> None:
    content = make_tmx({"en": "house", "de": "Haus", "fr": "maison"})
    assert read_all_pairs([write_file(tmp_path / "big_de-fr.tmx", content)]) == [Pair("Haus", "maison")]
    assert find_corpus_languages([tmp_path / "big_de-fr.tmx"]) == ("de", "fr")
    both = make_tmx({"en": "house", "de": "Haus"})
    assert read_all_pairs([write_file(tmp_path / "de-en.tmx", both)]) == [Pair("Haus", "house")]
    assert read_all_pairs([write_file(tmp_path / "de-fr.tmx", both)]) == [Pair("house", "Haus")]


def test_third_language_late_in_a_tmx_file_is_an_error(tmp_path: Path) -> None:
    units = [{"en": f"{number}", "de": f"{number}"} for number in range(1500)]
    path = write_file(tmp_path / "memory.tmx", make_tmx(*units, {"en": "x", "fr": "y"}))
    assert "holds en, de, fr; say which" in corpus_error(path)
    assert corpus_error(path).startswith(f"{path}:")
    assert len(list(iterate_pairs([path], "en", "de"))) == 1500
    assert list(iterate_pairs([path], "en", "fr")) == [Pair("x", "y")]


def test_tmx_language_code_includes_its_regional_variants(tmp_path: Path) -> None:
    units = [{"en-US": "1", "de": "2"}, {"en": "3", "de-AT": "4"}]
    path = write_file(tmp_path / "memory.tmx", make_tmx(*units))
    assert read_all_pairs([path]) == [Pair("1", "2"), Pair("3", "4")]
    many = [{"en-US": "1", "de": "2"}] * 1200
    assert len(read_all_pairs([write_file(tmp_path / "long.tmx", make_tmx(*many, {"en": "3", "de": "4"}))])) == 1201


def test_tmx_without_units_in_both_languages_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "memory.tmx", make_tmx({"en": "house"}, {"en": "tree"}))
    assert corpus_error(path) == f"{path} holds one language only (en); a pair has two"
    path = write_file(tmp_path / "memory.tmx", make_tmx({"en": "house"}, {"de": "Baum"}))
    assert corpus_error(path) == f"{path} has no unit in both en and de; it holds en, de"
    assert list(iterate_pairs([write_file(tmp_path / "memory.tmx", make_tmx())])) == []


def test_tmx_inline_codes_are_not_part_of_the_text(tmp_path: Path) -> None:
    segment = (
        'a<bpt i="1">&lt;b><sub>title</sub></bpt>b<hi>c<ph/><hi>d</hi></hi><ept i="1"/>e<it pos="begin">x</it>f'
        "<ut>x</ut><!-- no --><?no no?>g"
    )
    content = make_tmx({"en": "SEG", "de": "x"}).replace("SEG", segment)
    assert read_all_pairs([write_file(tmp_path / "x.tmx", content)]) == [Pair("abc defg", "x")]


@given(st.text(st.sampled_from("a\" '"), max_size=12))
def test_tsv_cells_quoted_by_a_spreadsheet_are_unquoted(text: str) -> None:
    out = io.StringIO()
    csv.writer(out, csv.excel_tab).writerow([text, "x"])
    assert unquote_cell(out.getvalue().split("\t")[0]) == text
    if '""' not in text[1:-1]:  # a spreadsheet would have doubled the quotation marks inside
        assert unquote_cell(text) == text


def test_quotation_marks_of_tsv_texts_are_kept(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", '"Sit"\t"Sitz"\n"a ""b"" c"\tx "y"\n"a" and "b"\t""\n')
    assert read_all_pairs([path]) == [Pair('"Sit"', '"Sitz"'), Pair('a "b" c', 'x "y"'), Pair('"a" and "b"', '""')]


def test_utf_16_tsv_error_names_the_iconv_command(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes("a\tb\n".encode("utf-16"))
    assert corpus_error(path).endswith("convert the file first: iconv -f utf-16 -t utf-8")


def test_tmx_inline_code_between_words_separates_them(tmp_path: Path) -> None:
    segment = 'Open it<ph x="1">&lt;br/&gt;</ph>Close it<ph/>. <ph/>b<ph/><ph/>c'
    content = make_tmx({"en": "SEG", "de": "x"}).replace("SEG", segment)
    assert read_all_pairs([write_file(tmp_path / "x.tmx", content)]) == [Pair("Open it Close it. b c", "x")]


def test_tmx_regional_variants_are_read_as_one_language(tmp_path: Path) -> None:
    units = [{"en-US": "a", "de-DE": "b"}, {"de-AT": "c", "en-GB": "d"}, {"EN-us": "e", "de-CH": "f"}]
    path = write_file(tmp_path / "memory.tmx", make_tmx(*units, srclang="en-US"))
    every = [Pair("a", "b"), Pair("d", "c"), Pair("e", "f")]
    assert read_all_pairs([path]) == list(iterate_pairs([path], None, "de")) == every
    assert list(iterate_pairs([path], None, "de-DE")) == every[:1]
    third = write_file(tmp_path / "third.tmx", make_tmx(*units, {"fr-FR": "g"}))
    assert "holds en-US, de-DE, de-AT, en-GB, EN-us, de-CH, fr-FR; say which" in corpus_error(third)
    scripts = write_file(tmp_path / "scripts.tmx", make_tmx({"en": "a", "zh-Hans": "b", "zh-Hant": "c"}))
    assert "holds en, zh-Hans, zh-Hant; say which" in corpus_error(scripts)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "iso-8859-1", "utf-8-sig"])
def test_xml_encodings_are_read(encoding: str, tmp_path: Path) -> None:
    content = make_tmx({"en": "é", "de": "ß"})
    declared = f'<?xml version="1.0" encoding="{"utf-8" if "sig" in encoding else encoding}"?>{content}'
    assert read_all_pairs([write_file(tmp_path / "x.tmx", declared.encode(encoding))]) == [Pair("é", "ß")]


def test_tmx_lang_attribute_of_old_versions_is_read(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.tmx", make_tmx({"en": "a", "de": "b"}).replace("xml:lang", "lang"))
    assert read_all_pairs([path]) == [Pair("a", "b")]
    broken = write_file(tmp_path / "x.tmx", make_tmx({"en": "a", "de": "b"}).replace('xml:lang="de"', ""))
    assert corpus_error(broken) == f"{broken}:8: a <tuv> without xml:lang; add its language code"


def test_tmx_with_namespace_and_line_breaks_is_read(tmp_path: Path) -> None:
    content = make_tmx({"en": "\n  two\r\n\tlines \u00a0 ", "de": "x"}).replace(
        "<tmx ", '<tmx xmlns="http://x.org/tmx14" '
    )
    assert read_all_pairs([write_file(tmp_path / "x.tmx", content)]) == [Pair("two lines \u00a0", "x")]


def test_damaged_tmx_error_names_file_and_line(tmp_path: Path) -> None:
    cut = write_file(tmp_path / "x.tmx", TMX[: TMX.index("ist alt")])
    assert corpus_error(cut).startswith(
        f"{cut}:{len(TMX[: TMX.index('ist alt')].splitlines())}: damaged or cut off, the XML cannot be read: "
    )
    wrong = write_file(tmp_path / "x.tmx", TMX.replace("house", "h\x01use"))
    assert corpus_error(wrong).startswith(f"{wrong}:8: damaged")
    latin = write_file(tmp_path / "x.tmx", TMX.replace("Haus", "Häus").replace("–", "-").encode("latin-1"))
    assert corpus_error(latin).startswith(f"{latin}:9: damaged")
    other = write_file(tmp_path / "x.tmx", "<html><body/></html>")
    assert corpus_error(other) == f"{other} is XML, but its first element is <html> and not <tmx>"
    for content in (b"", b"a\tb\n", b"\x00\x01"):
        assert corpus_error(write_file(tmp_path / "x.tmx", content)).startswith(f"{tmp_path / 'x.tmx'}:1: damaged")


def test_xml_entities_are_neither_loaded_nor_expanded(tmp_path: Path) -> None:
    secret = write_file(tmp_path / "secret.txt", "secret")
    entity = f'<!DOCTYPE tmx [<!ENTITY x SYSTEM "file://{secret}">]>'
    path = write_file(tmp_path / "x.tmx", entity + make_tmx({"en": "a SEG", "de": "b"}).replace("SEG", "&x;"))
    assert (
        corpus_error(path)
        == f"{path}:6: &x; is an entity that the file defines, which is not expanded; write its text instead"
    )
    bomb = '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    path = write_file(tmp_path / "x.tmx", f"{bomb}]>" + make_tmx({"en": "SEG", "de": "b"}).replace("SEG", "&i;"))
    assert "entity" in corpus_error(path)


MEASURE_MEMORY = """
import resource, sys
from pathlib import Path
from regard.data.readers.dispatch import iterate_pairs
pairs = iterate_pairs([Path(sys.argv[1])])
for _ in range(2000): next(pairs)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = 2000 + sum(1 for _ in pairs)
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["tmx", "xliff", "parquet"])
def test_memory_use_does_not_grow_with_the_file_size(kind: str, tmp_path: Path) -> None:
    count, text = 8_000, "one-long-word-without-space-" * 42
    path = tmp_path / f"large.{kind}"
    if kind == "parquet":
        rows = [f"{text}{number * 7919}" for number in range(count)]
        write_file(path, parquet_bytes({"source": rows, "target": rows}, use_dictionary=False, compression="none"))
    elif kind == "tmx":
        write_file(path, make_tmx(*({"en": f"{text}{number}", "de": text} for number in range(count))))
    else:
        unit = XLIFF1[XLIFF1.index("<group") : XLIFF1.index("</group>")] + "</group>"
        units = unit.replace("tree", text).replace("Baum", text) * count
        write_file(path, XLIFF1.replace("</body>", f"{units}</body>", 1))
    assert path.stat().st_size > 14_000_000
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_MEMORY, str(path)], env=environment(), capture_output=True, text=True, check=True
    )
    read_pairs, kilobytes = map(int, done.stdout.split())
    assert read_pairs >= count
    assert kilobytes < 6_000, "three quarters of the file are read here, more than 10 MB"


# XLIFF


@pytest.mark.parametrize(
    "content",
    [XLIFF1, XLIFF1.replace(' xmlns="urn:oasis:names:tc:xliff:document:1.2"', "")],
    ids=["namespace", "no namespace"],
)
def test_xliff_1_is_read_with_and_without_namespace(content: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "memory.xlf", content)
    assert read_all_pairs([path]) == PAIRS
    assert find_corpus_languages([path]) == ("en", "de")


def test_xliff_pairs_equal_those_of_translate_toolkit(tmp_path: Path) -> None:
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
    assert read_all_pairs([write_file(tmp_path / "x.xlf", plain)]) == [Pair(unit.source, unit.target) for unit in kept]


@given(rows=st.lists(st.tuples(XML_TEXTS.filter(bool), XML_TEXTS.filter(bool)), min_size=1, max_size=5))
def test_xliff_written_by_translate_toolkit_is_read(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = xlifffile(sourcelanguage="en", targetlanguage="de")
    for source, target in rows:
        unit = store.addsourceunit(source)
        unit.target = target
    path = write_file(tmp_path_factory.getbasetemp() / "toolkit.xlf", bytes(store))
    assert list(iterate_pairs([path])) == [Pair(*row) for row in rows]


def test_xliff_direction_can_be_reversed(tmp_path: Path) -> None:
    back = [Pair(*pair[::-1]) for pair in PAIRS]
    for content in (XLIFF1, XLIFF2):
        path = write_file(tmp_path / "x.xliff", content)
        assert (
            list(iterate_pairs([path], "de", "en"))
            == list(iterate_pairs([path], source="de"))
            == list(iterate_pairs([path], target="en"))
            == back
        )
        assert list(iterate_pairs([path], "en", "de")) == list(iterate_pairs([path], source="en")) == PAIRS
        assert find_corpus_languages([path], "de", "en") == ("de", "en")
        assert corpus_error(path, "en", "fr").endswith("holds en, de, not en and fr")
        named = write_file(tmp_path / "de-en.xliff", content)
        assert read_all_pairs([named]) == back
        assert read_all_pairs([named.rename(tmp_path / "fr-en.xliff")]) == PAIRS


def test_each_file_element_of_xliff_has_its_own_languages(tmp_path: Path) -> None:
    first, second = XLIFF1.split('<file original="b"')
    other = second.replace('target-language="de"', "").replace('source-language="en"', 'source-language="en-GB"')
    path = write_file(tmp_path / "x.xlf", f'{first}<file original="b"{other}')
    assert read_all_pairs([path]) == PAIRS
    assert list(iterate_pairs([path], "en", "de")) == PAIRS
    mixed = write_file(tmp_path / "x.xlf", XLIFF1.replace('"de"', '"fr"', 1))
    assert corpus_error(mixed, "en", "de").startswith(f"{mixed}:6 holds en, fr, not en and de")


def test_xliff_units_with_translate_no_are_left_out(tmp_path: Path) -> None:
    inside = (
        '<group translate="yes"><unit id="9"><segment><source>in</source><target>ein</target></segment></unit></group>'
    )
    content = XLIFF2.replace("</group>", f"{inside}</group>", 1)
    assert Pair("in", "ein") in read_all_pairs([write_file(tmp_path / "x.xlf", content)])
    assert Pair("regard", "regard") not in read_all_pairs([tmp_path / "x.xlf"])


@pytest.mark.parametrize(
    ("code", "text"),
    [("41", "A"), ("0000", "\x00"), ("1F600", "😀"), ("d800", None), ("", None), ("x", None), ("110000", None)],
)
def test_xliff_cp_element_is_a_character_or_an_error(code: str, text: str | None, tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.xlf", XLIFF2.replace('hex="0020"', f'hex="{code}"'))
    if text is None:
        assert corpus_error(path) == f'{path}:7: <cp hex="{code}"/> is not a character'
    else:
        assert read_all_pairs([path])[1].target == f"der Baum ist{text}alt"


# PO


def test_po_plural_forms_become_pairs(tmp_path: Path) -> None:
    head = 'msgid ""\nmsgstr "Language: {}\\nContent-Type: text/plain; charset=UTF-8\\n"\n\n'
    message = 'msgid "%d file"\nmsgid_plural "%d files"\n'
    polish = 'msgstr[0] "%d plik"\nmsgstr[1] "%d pliki"\nmsgstr[2] "%d plików"\n'
    path = write_file(tmp_path / "x.po", head.format("pl") + message + polish)
    assert read_all_pairs([path]) == [Pair("%d file", "%d plik"), Pair("%d files", "%d plików")]
    path = write_file(tmp_path / "x.po", head.format("ja") + message + 'msgstr[0] "ファイル%d個"\n')
    assert read_all_pairs([path]) == [Pair("%d file", "ファイル%d個"), Pair("%d files", "ファイル%d個")]
    assert list(iterate_pairs([path], "ja", "en")) == [Pair(*pair[::-1]) for pair in read_all_pairs([path])]
    assert corpus_error(path, "en", "de").startswith(f"{path} holds ja, not en and de")


def test_po_is_decoded_by_the_charset_of_its_header(tmp_path: Path) -> None:
    content = FORMATS["pairs.po"].decode().replace("UTF-8", "ISO-8859-1").replace("–", "ß")
    path = write_file(tmp_path / "x.po", content.encode("latin-1"))
    assert read_all_pairs([path])[-1] == Pair("is it?", "ist es so ß nicht?")
    unnamed = re.sub(rb'"Content-Type.*\n', b"", FORMATS["pairs.po"])
    assert read_all_pairs([write_file(tmp_path / "u.po", unnamed)]) == read_all_pairs(
        [write_file(path, FORMATS["pairs.po"])]
    )
    latin = write_file(tmp_path / "l.po", unnamed.decode().replace("–", "ß").encode("latin-1"))
    assert corpus_error(latin).startswith(f"{latin}:31: not utf-8, ")


@pytest.mark.parametrize("content", ["#~ " * 1000, '# c\nmsgid "a"\nmsgid_plural "b"\n'], ids=["nested", "no msgstr"])
def test_po_file_that_its_parser_fails_on_is_a_user_error(content: str, tmp_path: Path) -> None:
    assert " is damaged or not a PO file: " in corpus_error(write_file(tmp_path / "x.po", content))


def test_damaged_po_error_names_file_and_line(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.po", 'msgid "a"\nmsgstr "b"\nmsgid "c\n')
    assert corpus_error(path).startswith(f"{path}:3: damaged or not a PO file: ")
    path = write_file(tmp_path / "x.po", FORMATS["pairs.po"].replace("–".encode(), b"\xff"))
    assert corpus_error(path) == f"{path}:32: not utf-8, the encoding that the header names (by default UTF-8)"
    path = write_file(tmp_path / "x.po", FORMATS["pairs.po"].replace(b"UTF-8", b"no-such"))
    assert "unknown encoding: no-such" in corpus_error(path)


def test_po_without_translate_toolkit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "translate.storage.poparser", None)
    path = write_file(tmp_path / "x.po", FORMATS["pairs.po"])
    assert (
        corpus_error(path) == f"{path}: PO files need translate-toolkit; install it with pip install 'regard[formats]'"
    )


# Parquet and JSONL

SOURCES, TARGETS = [row[0] for row in ROWS], [row[1] for row in ROWS]
TRANSLATION_COLUMN = pyarrow.array(
    [{"de": right, "en": left, "fr": None} for left, right in ROWS],
    pyarrow.struct([("de", pyarrow.string()), ("en", pyarrow.string()), ("fr", pyarrow.string())]),
)


@pytest.mark.parametrize(
    "columns",
    [
        {"source": SOURCES, "target": TARGETS, "id": [1, 2, 3]},
        {"en": SOURCES, "de": TARGETS},
        {"id": ["x", "y", "z"], "en": pyarrow.array(SOURCES, pyarrow.large_string()), "de": TARGETS},
        {"en": pyarrow.array(SOURCES).dictionary_encode(), "de": TARGETS},
        {"translation": [{"en": left, "de": right} for left, right in ROWS], "id": [1, 2, 3]},
        {"source": SOURCES, "target": TARGETS, "translation": [{"en": "other", "de": "anderes"}] * 3},
    ],
    ids=["source and target", "language codes", "large strings", "dictionary-encoded", "struct", "columns and struct"],
)
def test_parquet_columns_are_recognised(columns: dict[str, Any], tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.parquet", parquet_bytes(columns))
    assert read_all_pairs([path]) == list(iterate_pairs([path], "en", "de")) == PAIRS


def test_parquet_languages_can_be_chosen(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.parquet", parquet_bytes({"translation": TRANSLATION_COLUMN}))
    assert "holds de, en, fr; say which" in corpus_error(path)
    assert list(iterate_pairs([path], "en", "de")) == PAIRS
    assert list(iterate_pairs([path], "de", "en")) == [Pair(*pair[::-1]) for pair in PAIRS]
    assert list(iterate_pairs([path], "en", "fr")) == [Pair(left, "") for left in SOURCES]
    assert corpus_error(path, "en", "es") == f"{path} holds de, en, fr, not en and es"
    named = path.rename(tmp_path / "en-de.parquet")
    assert read_all_pairs([named]) == PAIRS
    assert find_corpus_languages([named]) == ("en", "de")
    path = write_file(tmp_path / "x.parquet", parquet_bytes({"source": SOURCES, "target": TARGETS}))
    assert list(iterate_pairs([path], "pl", "cs")) == PAIRS
    assert find_corpus_languages([path]) == ("source", "target")


def test_parquet_nulls_become_empty_texts(tmp_path: Path) -> None:
    rows = pyarrow.array([{"en": "a", "de": None}, None, {"en": None, "de": "b"}])
    path = write_file(tmp_path / "x.parquet", parquet_bytes({"translation": rows}))
    assert list(iterate_pairs([path], "en", "de")) == [Pair("a", ""), Pair("", ""), Pair("", "b")]


def test_damaged_parquet_or_one_without_pairs_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.parquet", parquet_bytes({"text": SOURCES, "number": [1, 2, 3]}))
    assert corpus_error(path).startswith(f"{path} has the columns text, number; pairs are in `source` and `target`")
    whole = FORMATS["pairs.parquet"]
    for content in (b"", b"PAR1", b"a\tb\n", whole[:-9], whole[20:], whole[:30] + bytes(60) + whole[90:]):
        path = write_file(tmp_path / "x.parquet", content)
        assert corpus_error(path).startswith(f"{path} is damaged or not a Parquet file: ")
    text = pyarrow.array([b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    path = write_file(tmp_path / "x.parquet", parquet_bytes({"source": text, "target": ["a"]}))
    assert corpus_error(path).startswith(f"{path} is damaged")


@pytest.mark.parametrize(
    "row",
    [
        lambda left, right: {"id": 3, "en": left, "de": right},
        lambda left, right: {"translation": {"en": left, "de": right}},
        lambda left, right: {"en_GB": left, "de-DE": right, "en-US-x": 3},
        lambda left, right: {"source": "news", "en": left, "de": right},
    ],
    ids=["language codes", "nested", "regional codes", "provenance in source"],
)
def test_jsonl_languages_are_recognised_and_can_be_chosen(row: Callable[[str, str], object], tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.jsonl", "".join(json.dumps(row(*pair)) + "\n" for pair in ROWS))
    assert read_all_pairs([path]) == list(iterate_pairs([path], "en", "de")) == PAIRS
    assert list(iterate_pairs([path], "de", "en")) == [Pair(*pair[::-1]) for pair in PAIRS]
    assert corpus_error(path, "en", "fr").startswith(f"{path}:1 holds ")
    assert [code[:2] for code in find_corpus_languages([path])] == ["en", "de"]


def test_jsonl_line_without_a_language_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.jsonl", '{"en": "a", "de": "b"}\n{"en": "c"}\n')
    assert corpus_error(path).startswith(f'{path}:2: not a pair, there is no text under "de"')
    path = write_file(tmp_path / "x.jsonl", '{"source": "a", "target": null}\n')
    assert corpus_error(path).startswith(f'{path}:1: not a pair, there is no text under "target"')


# Language codes


def test_language_codes_match_by_prefix_and_ignore_case() -> None:
    assert matches_language("en-US", "EN")
    assert matches_language("zh_Hans", "zh-hans")
    assert not matches_language("en", "en-US")
    assert not matches_language("zh-Hans", "zh-Hant")
    assert not matches_language("english", "en")
    assert deduplicate_languages(["en-US", "de", "en", "en-GB", "de"]) == ["en", "de"]
    assert deduplicate_languages(["pt-BR", "pt-PT"]) == ["pt-BR", "pt-PT"]
    assert find_matching_code(["en-US", "EN"], "en") == "EN"
    assert find_matching_code(["en-US", "en-GB"], "en") == "en-US"
    assert find_matching_code(["de"], "en") is None


def test_codes_of_two_and_three_letters_name_one_language() -> None:
    for codes in (
        "de deu ger",
        "fr fra fre",
        "zh zho chi cmn",
        "he heb iw",
        "id ind in",
        "ro ron rum mo",
        "fa per pes",
    ):
        for code in codes.split():
            assert all(matches_language(code, other) for other in codes.split()), code
            assert not matches_language(code, "en")
            assert not matches_language("eng", code)
    assert normalize_language_code("DEU_at") == "de-at"
    assert matches_language("eng-US", "en")
    assert matches_language("en-US", "eng-us")
    assert not matches_language("eng", "en-US")
    assert matches_language("cmn-Hans", "zh-Hans")
    assert not matches_language("cmn-Hant", "zh-Hans")
    assert not matches_language("yue", "zh")
    assert not matches_language("sr", "sh")
    assert deduplicate_languages(["deu", "de", "en"]) == ["de", "en"]
    assert merge_regions(["deu-AT", "de-DE", "eng"]) == ["de", "en"]
    assert find_matching_code(["fra", "ger"], "de") == "ger"


def test_norwegian_contradicts_neither_bokmaal_nor_nynorsk() -> None:
    assert deduplicate_languages(["no", "nn"]) == ["no", "nn"], "one file may hold both"
    assert not matches_language("nn", "nb")
    assert not are_different_languages("nb-NO", "no")
    assert are_different_languages("nb", "nn")


def test_only_codes_of_languages_can_contradict_each_other() -> None:
    assert not are_different_languages("deu", "de-AT")
    assert are_different_languages("fra", "de")
    for name in ("txt", "source", "tgt", None):
        assert not are_different_languages(name, "de"), name


def test_memory_with_codes_of_three_letters_is_read_for_a_run_of_two(tmp_path: Path) -> None:
    variants = "".join(f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>' for code in ("fra", "deu", "eng-GB"))
    path = write_file(tmp_path / "x.tmx", f'<tmx version="1.4"><header/><body><tu>{variants}</tu></body></tmx>')
    assert read_all_pairs([path], "de", "en") == [Pair("deu", "eng-GB")]
    assert read_all_pairs([path], "ger", "eng") == [Pair("deu", "eng-GB")]
    assert corpus_error(path, "de", "en-US").endswith("it holds fra, deu, eng-GB")


def test_column_id_is_indonesian_where_that_is_wanted_by_another_code(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.jsonl", json.dumps({"id": "buku", "en": "book", "de": "Buch"}) + "\n")
    assert read_all_pairs([path], "ind", "en") == [Pair("buku", "book")]


# Pipes


def start_pipe(path: Path, content: bytes) -> Path:
    """Create a named pipe and write the content to it in a thread."""
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_from_a_named_pipe(name: str, tmp_path: Path) -> None:
    assert read_all_pairs([start_pipe(tmp_path / name, FORMATS[name])]) == PAIRS


@pytest.mark.parametrize("ending", PACKED, ids=lambda ending: ending or "uncompressed")
@pytest.mark.parametrize("name", FORMATS)
def test_format_of_an_unnamed_pipe_is_detected_from_its_content(name: str, ending: str, tmp_path: Path) -> None:
    assert read_all_pairs([start_pipe(tmp_path / "63", PACKED[ending](FORMATS[name]))]) == PAIRS


def test_tsv_on_an_unnamed_pipe_is_not_taken_for_another_format(tmp_path: Path) -> None:
    rows = [("{a}", "b"), ("# a", "b"), ("<b>a</b>", "b"), ("msgid x", "b"), ("\ufeffa", "b")]
    for number, row in enumerate(rows):
        found = read_all_pairs([start_pipe(tmp_path / str(number), "\t".join(row).encode())])
        assert found == [Pair(row[0].removeprefix("\ufeff"), row[1])]


@pytest.mark.parametrize("piped", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize(("suffix", "text"), [(".tsv", "a\tb\n\nc\n"), (".jsonl", '{"a": 1}\n\n[1]\n')])
def test_rows_have_the_format_and_the_position_of_their_line(
    suffix: str, text: str, piped: bool, tmp_path: Path
) -> None:
    path = start_pipe(tmp_path / "63", text.encode()) if piped else write_file(tmp_path / f"x{suffix}", text)
    found, lines = open_rows(path, "not a file of rows")
    assert found == suffix
    if suffix == ".tsv":
        assert list(iterate_tsv_rows(lines, "x")) == [("x:1", ["a", "b"]), ("x:2", []), ("x:3", ["c"])]
        return
    rows = iterate_json_lines(number_lines(lines, "x"), "no row")
    assert next(rows) == ("x:1", {"a": 1})
    with pytest.raises(UserError, match=r"^x:3: no row, not \[1\]$"):
        next(rows)


def test_file_that_holds_no_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        open_rows(tmp_path / "x.txt", "not a file of rows")
    with pytest.raises(UserError, match=r"x.txt is not a file of rows \(\.jsonl, \.tsv, also "):
        open_rows(write_file(tmp_path / "x.txt", "a"), "not a file of rows")


def test_utf_16_tmx_on_an_unnamed_pipe_is_read(tmp_path: Path) -> None:
    content = FORMATS["pairs.tmx"].decode().replace("UTF-8", "UTF-16")
    assert read_all_pairs([start_pipe(tmp_path / "63", content.encode("utf-16"))]) == PAIRS


def test_error_in_a_pipe_names_the_pipe(tmp_path: Path) -> None:
    pipe = start_pipe(tmp_path / "63", b'{"source": "a", "target": "b"}\n[]\n')
    assert corpus_error(pipe).startswith(f"{pipe}:2: not a pair")
    cut = start_pipe(tmp_path / "64", PACKED[".gz"](FORMATS["pairs.tsv"])[:-9])
    assert corpus_error(cut).startswith(f"{cut} is damaged, it cannot be decompressed")


def test_two_pipes_of_different_length_are_refused(tmp_path: Path) -> None:
    left, right = start_pipe(tmp_path / "1", b"a\n" * 3), start_pipe(tmp_path / "2", b"b\n" * 500)
    with pytest.raises(UserError, match=r"1 has 3 lines and .*2 has 500;"):
        list(iterate_pairs([left, right]))


def test_inspect_reads_standard_input(regard: Command) -> None:
    done = regard("data", "inspect", "-", "--json", input=FORMATS["pairs.tsv"])
    assert json.loads(done.stdout)["pairs"] == 3
    wrong = regard("data", "inspect", "-", input="a\tb\nc\n")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "regard: standard input:2: no tab; a line of a .tsv file is source, tab, target\n"


def test_inspect_reads_bash_process_substitution(tmp_path: Path) -> None:
    write_file(tmp_path / "x.tsv.gz", PACKED[".gz"](FORMATS["pairs.tsv"]))
    command = f"{sys.executable} -m regard data inspect <(zcat x.tsv.gz) --json"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, check=True)
    assert json.loads(done.stdout)["pairs"] == 3


def test_lines_of_a_compressed_pipe_are_decompressed(tmp_path: Path) -> None:
    assert list(iterate_lines(start_pipe(tmp_path / "x.gz", PACKED[".gz"](b"a\nb")))) == ["a", "b"]


def test_importing_the_corpus_reader_loads_no_heavy_libraries() -> None:
    code = (
        "import sys, regard.cli.app, regard.data.readers.dispatch\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'lxml', 'translate', 'sacrebleu'} & set(sys.modules)\n"
        "sys.exit(f'imported at the start: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_LANGUAGES = {
    "x.tsv": "a\tb\n",
    "x.jsonl": '{"source": "a", "target": "b"}\n',
    "x.po": 'msgid "a"\nmsgstr "b"\n',
    "x.xlf": '<xliff version="1.2"><file><trans-unit><source>a</source><target>b</target></trans-unit></file></xliff>',
}


@pytest.mark.parametrize(
    ("name", "command"),
    each_value([*WITHOUT_LANGUAGES, "x.parquet", "-", "two files"], [["inspect"], ["clean", "--out", "out.tsv"]]),
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_choosing_languages_of_a_file_without_any_is_refused(
    regard: Command, tmp_path: Path, name: str, command: list[str]
) -> None:
    write_file(tmp_path / "x.parquet", parquet_bytes({"source": ["a"], "target": ["b"]}))
    for path, content in {**WITHOUT_LANGUAGES, "x.en": "a\n", "x.de": "b\n"}.items():
        (tmp_path / path).write_text(content, encoding="utf-8")
    data = ["x.en", "x.de"] if name == "two files" else [name]
    given = WITHOUT_LANGUAGES["x.tsv"] if name == "-" else None
    done = regard("data", command[0], *data, *command[1:], "--source", "en", "--target", "de", input=given)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert (
        "names no languages, so that --source and --target have nothing to choose from: leave them out" in done.stderr
    )
    assert regard("data", command[0], *data, *command[1:], input=given).returncode == 0
    if name != "-":  # training names the languages, and these need not be those of the file
        assert list(iterate_pairs([tmp_path / path for path in data], "en", "de")) == [Pair("a", "b")]
