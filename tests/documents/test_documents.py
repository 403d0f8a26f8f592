"""Document translation: text is translated, formatting follows its words, everything else stays byte-identical."""

from __future__ import annotations

import html
import io
import random
import re
import string
import struct
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from html.parser import HTMLParser
from itertools import permutations
from math import factorial
from typing import Any
from xml.parsers import expat

import docx
import pptx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from odf import opendocument, teletype
from odf import text as odf_text
from support.archives import make_zip

from regard.documents import DocumentError, DocumentLimits, base, translate_document
from regard.documents.base import MIN_UNPACKED_LIMIT
from regard.documents.document import DOCUMENT_EXTENSIONS, list_supported_extensions
from regard.errors import UserError
from regard.serve.routes.documents import MAX_TAGS
from regard.translate import markup, tag_projection

TAG_OR_ENTITY = re.compile(r"(<[^<>]*>|&#?\w+;)")
CONTENT_TYPES = "[Content_Types].xml"
W_XMLNS = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def uppercase_texts(texts: Sequence[str]) -> list[str]:
    """Upper-case the texts, except tags and entities."""
    return ["".join(part if part[:1] in "<&" else part.upper() for part in TAG_OR_ENTITY.split(text)) for text in texts]


def reverse_texts(texts: Sequence[str]) -> list[str]:
    """Reverse the order of the words and move the tags along, as with the alignment of a model."""
    return [_reverse_words(text) for text in texts]


def _reverse_words(text: str) -> str:
    marked = markup.parse_markup(text)
    split = [piece.plain_text.split() for piece in marked.blocks]
    links = [[(index, len(words) - 1 - index) for index in range(len(words))] for words in split]
    return tag_projection.restore_markup(marked, [" ".join(reversed(words)) for words in split], links)


def copy_texts(texts: Sequence[str]) -> list[str]:
    return list(texts)


def fail_if_called(texts: Sequence[str]) -> list[str]:
    raise AssertionError(f"unexpected texts to translate: {texts}")


class RecordingTranslator:
    """A translator that records the texts it is given."""

    def __init__(self, translate: Callable[[Sequence[str]], list[str]]) -> None:
        self.translate = translate
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[str]:
        self.texts += texts
        return self.translate(texts)


def collect_texts(name: str, content: bytes, limits: DocumentLimits | None = None) -> list[str]:
    """Return the texts of a document that are given to the translator."""
    translator = RecordingTranslator(copy_texts)
    translate_document(name, content, translator, limits)
    return translator.texts


def read_zip(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        assert file.testzip() is None
        return {info.filename: file.read(info) for info in file.infolist()}


# Text files


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["without BOM", "with BOM"])
def test_txt_keeps_line_endings_and_white_space(bom: bytes) -> None:
    content = bom + "One & two\r\n\n\t three < four \rfünf\n 1.2 - 3\nlast".encode()
    expected = bom + "ONE & TWO\r\n\n\t THREE < FOUR \rFÜNF\n 1.2 - 3\nLAST".encode()
    assert translate_document("a.txt", content, uppercase_texts) == expected
    assert collect_texts("A.TXT", content) == ["One &amp; two", "three &lt; four", "fünf", "last"]


def test_txt_with_tags_and_entities_is_not_parsed_as_markup() -> None:
    content = b"if a<b and &amp; <b>x</b> &lt;"
    assert collect_texts("a.txt", content) == ["if a&lt;b and &amp;amp; &lt;b&gt;x&lt;/b&gt; &amp;lt;"]
    assert translate_document("a.txt", content, copy_texts) == content


def test_line_break_in_a_translation_adds_no_line_to_txt() -> None:
    assert (
        translate_document("a.txt", b"one\ntwo\n", lambda texts: [f"{text}\n!" for text in texts]) == b"one !\ntwo !\n"
    )


@pytest.mark.parametrize("ending", [".txt", ".html", ".htm", ".srt", ".vtt"])
@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", b" \r\n "], ids=["empty", "newline", "BOM", "blank"])
def test_file_without_text_is_returned_without_translation(ending: str, content: bytes) -> None:
    assert translate_document(f"a{ending}", content, fail_if_called) == content


SUBTITLES = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500\r\nThe <i>old dog</i>\r\nsleeps here & there.\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000 X1:1\r\n- Who is it?\r\n- {\\an8}The cat.\r\n\r\n\r\n"
    "3\r\n00:00:05,000 --> 00:00:06,000\r\n…\r\n"
)


def test_srt_cue_is_one_text_and_keeps_number_times_and_tags() -> None:
    assert collect_texts("a.srt", SUBTITLES.encode()) == [
        "The <r1>old dog</r1> sleeps here &amp; there.",
        "Who is it?",
        "The cat.",
    ]
    made = translate_document("a.srt", SUBTITLES.encode(), reverse_texts).decode()
    assert made == SUBTITLES.replace(
        "The <i>old dog</i>\r\nsleeps here & there.", "there. & here sleeps\r\n<i>dog old</i> The"
    ).replace("Who is it?", "it? is Who").replace("The cat.", "cat. The")


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        ("- our mother\n- <i>not here</i>", ["our mother", "not here"]),
        ("♪ an old song ♪\n♪ and a new one ♪", ["an old song", "and a new one"]),
        ("<i>– not me\nand you</i>", ["not me and you"]),
        ("{\\an8}--and then", ["and then"]),
        ("- no", ["no"]),
        ("an old-fashioned house - or two", ["an old-fashioned house - or two"]),
        ("- ♪ ♪", []),
    ],
)
def test_speaker_dashes_and_music_notes_are_not_translated(lines: str, sent: list[str]) -> None:
    content = f"1\n00:00:01,000 --> 00:00:02,000\n{lines}\n"
    translator = RecordingTranslator(lambda texts: [text.upper() for text in texts])
    kept = lines.upper().replace("I>", "i>").replace("\\AN8", "\\an8")
    assert translate_document("a.srt", content.encode(), translator).decode() == content.replace(lines, kept)
    assert translator.texts == sent


def test_no_cue_line_holds_only_a_speaker_dash() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\n- Is it\nno?\n"
    assert translate_document("a.srt", content, lambda texts: ["Nein?"]) == content.replace(b"Is it\nno?", b"Nein?")


def test_cue_with_a_one_word_translation_has_one_line() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\nan old\ndog\n\n2\n00:00:02,000 --> 00:00:03,000\nx\n"
    made = translate_document("a.srt", content, lambda texts: ["Hund", "y"])
    assert made == b"1\n00:00:01,000 --> 00:00:02,000\nHund\n\n2\n00:00:02,000 --> 00:00:03,000\ny\n"


def test_srt_cues_without_blank_lines_between_them_are_separate() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\none\n2\n00:00:02,000 --> 00:00:03,000\ntwo"
    assert collect_texts("a.srt", content) == ["one", "two"]


CAPTIONS = """WEBVTT - An old film
Language: en

NOTE JOHN: not for the screen

STYLE
::cue { color: papayawhip }

first
00:01.000 --> 00:02.500 align:start
<v.loud John Smith>The <c.old>old dog</c> sleeps
here &amp; <00:01.500>there.</v>

00:00:03.000 --> 00:00:04.000
<v Ann>Who is it? <v Bob>The cat &gt; all.
&gt;&gt; MARY: Yes.
"""


def test_vtt_keeps_voices_notes_styles_and_cue_settings() -> None:
    assert collect_texts("a.vtt", CAPTIONS.encode()) == [
        "The <r1>old dog</r1> sleeps here &amp; <r2/>there.",
        "Who is it?",
        "The cat &gt; all.",
        "Yes.",
    ]
    assert translate_document("a.vtt", CAPTIONS.encode(), copy_texts).decode().split() == CAPTIONS.split()
    made = translate_document("a.vtt", CAPTIONS.encode(), lambda texts: ["x & <y>", "b", "c", "d"]).decode()
    assert made.partition("align:start\n")[2] == (
        "<v.loud John Smith>x &amp;\n&lt;y&gt;<c.old></c><00:01.500></v>\n\n"
        "00:00:03.000 --> 00:00:04.000\n<v Ann>b <v Bob>c\n&gt;&gt; MARY: d\n"
    )


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        ("JOHN: here we are", ["here we are"]),
        ("JOHN:\nhere we are", ["here we are"]),
        ("- JOHN: here\n- MARY ANN: there", ["here", "there"]),
        (">> DR. O'NEIL: here\nwe are", ["here we are"]),
        ("MAN #2 (on the phone): yes", ["yes"]),
        ("[JOHN]: yes", ["yes"]),
        ("JEAN\xa0: oui", ["oui"]),
        ("<i>JOHN: here</i> we are", ["here<r1/> we are"]),
        ("<b>JOHN:</b> here <i>we</i> are", ["here <r1>we</r1> are"]),
        ("<b>JOHN</b>: yes", ["yes"]),
        ("{\\an8}ÖZGÜR: yes", ["yes"]),
        ("so\nJOHN: yes", ["so", "yes"]),
        ("<v John>yes", ["yes"]),
        ("Listen: at 10:30 we go", ["Listen: at 10:30 we go"]),
        ("HERE WE ARE", ["HERE WE ARE"]),
        ("WE HAVE ALL SEEN IT: yes", ["WE HAVE ALL SEEN IT: yes"]),
        ("JOHN:", []),
        ("see\nhttps://example.org\nand more", ["see", "and more"]),
        ("(LAUGHS)", ["(LAUGHS)"]),
        ("- JOHN: <i>\nyes</i>", ["yes"]),
    ],
)
def test_speaker_names_are_not_translated(lines: str, sent: list[str]) -> None:
    content = f"1\n00:00:01,000 --> 00:00:02,000\n{lines}\n"
    assert collect_texts("a.srt", content.encode()) == sent
    assert translate_document("a.srt", content.encode(), copy_texts).decode().split() == content.split()


def test_speaker_names_in_a_transcript_need_not_be_upper_case() -> None:
    cues = ["John van Dam: yes", "Ann: no", "Note: one", "and so: on", "well", "a\nBob: b"]
    content = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n{text}\n\n" for n, text in enumerate(cues))
    assert collect_texts("a.srt", content.encode()) == ["yes", "no", "one", "and so: on", "well", "a", "b"]
    fewer = content.replace("Note:", "Note")
    assert collect_texts("a.srt", fewer.encode())[:2] == ["John van Dam: yes", "Ann: no"]


def test_no_cue_line_holds_only_a_speaker_name() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\nJOHN: Is it\nno?\n"
    made = translate_document("a.srt", content, lambda texts: ["aber nicht doch ja"])
    assert made == content.replace(b"Is it\nno?", b"aber\nnicht doch ja")


def test_empty_translation_leaves_the_cue_unchanged() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\none\n- two\n"
    assert translate_document("a.srt", content, lambda texts: ["", "&#10;zwei"]) == content.replace(b"two", b" zwei")


CUE_PREFIXES = [
    "",
    "- ",
    "– ",
    ">> ",
    "JOHN: ",
    "- MARY ANN: ",
    "<v Jo Doe>",
    "<v.x Jo>- ",
    "<i>DR. WU:</i> ",
    "MAN (off): ",
]
SPOKEN_TEXTS = st.lists(
    st.sampled_from(["old", "dog,", "<i>a</i>", "<i>", "</i>", "♪", "&", "1.", "{\\b1}", "no?\nyes", "<br>", "x:"]),
    min_size=1,
    max_size=6,
).map(" ".join)
CUE_LINES = st.tuples(st.sampled_from(CUE_PREFIXES), SPOKEN_TEXTS)
CUES = st.lists(st.lists(CUE_LINES, min_size=1, max_size=3), min_size=1, max_size=4)
TRANSLATIONS = st.one_of(
    st.text(max_size=20),
    st.lists(st.sampled_from(["<r1>", "</r1>", "<r2/>", "&#10;", " ", "\n\n", "Hund"])).map("".join),
)


@given(CUES, st.data(), st.sampled_from(["\n", "\r\n"]), st.sampled_from([".srt", ".vtt"]))
def test_any_translation_keeps_cue_numbers_times_and_speakers(
    cues: list[list[tuple[str, str]]], data: st.DataObject, end: str, ending: str
) -> None:
    times = [f"00:00:{index:02}.000 --> 00:00:{index:02}.900 X1:1" for index in range(len(cues))]
    texts = ["\n".join(prefix + spoken for prefix, spoken in cue) for cue in cues]
    blocks = [f"{index}\n{time}\n{text}" for index, (time, text) in enumerate(zip(times, texts, strict=True))]
    head = ("WEBVTT\n\n" if ending == ".vtt" else "").replace("\n", end)
    content = head + ("\n\n".join(blocks) + "\n").replace("\n", end)

    def translate(sent: Sequence[str]) -> list[str]:
        return [data.draw(TRANSLATIONS) for _ in sent]

    made = translate_document(f"a{ending}", content.encode(), translate).decode()
    assert made.startswith(head)
    assert made.endswith(end)
    found = made.removeprefix(head).removesuffix(end).split(end * 2)
    assert len(found) == len(blocks)
    for index, (block, cue) in enumerate(zip(found, cues, strict=True)):
        number, time, *lines = block.split(end)
        assert (number, time) == (str(index), times[index])
        rest = iter(lines)
        for prefix, _ in cue:
            assert not prefix or any(line.startswith(prefix.rstrip()) for line in rest)


XLIFF = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="en" target-language="de" original='x' datatype="plaintext"><body>
    <trans-unit id="1">
      <source>The <g id="1">old</g> dog<x id="2"/> &amp; I</source>
    </trans-unit>
    <trans-unit id="2"><source>Sit</source><target/></trans-unit>
    <trans-unit id="3"><source>Stay</source><target state="final">Bleib</target></trans-unit>
    <trans-unit id="4" translate="no"><source>regard</source></trans-unit>
    <trans-unit id="5"><source>a <bpt id="1">&lt;b></bpt>b<ept id="1">&lt;/b></ept> c</source></trans-unit>
  </body></file>
</xliff>
"""


def test_xliff_1_fills_empty_targets_and_keeps_others() -> None:
    made = translate_document("a.xliff", XLIFF.encode(), reverse_texts).decode()
    target = '<target state="needs-review-translation">'
    assert made == XLIFF.replace(
        "</source>\n",
        f'</source>\n      {target}I &amp; dog<x id="2"/> <g id="1">old</g> The</target>\n',
    ).replace("<target/>", f"{target}Sit</target>").replace(
        "c</source>",
        f'c</source>{target}c <bpt id="1">&lt;b></bpt>b<ept id="1">&lt;/b></ept> a</target>',
    )


def test_xliff_targets_in_an_untranslated_state_are_filled() -> None:
    unit = '<trans-unit id="2"><source>Sit here</source><target state="{}">{}</target></trans-unit>'
    head, tail = XLIFF.split('    <trans-unit id="1">')[0], "</body></file></xliff>"
    for state in ("new", "needs-translation"):
        made = translate_document(
            "a.xliff", f"{head}{unit.format(state, 'Sit here')}{tail}".encode(), reverse_texts
        ).decode()
        assert made == f"{head}{unit.format('needs-review-translation', 'here Sit')}{tail}"
    segment = "<segment state='{}'><source>Sit here</source><target>{}</target></segment>"
    second = '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"><file id="f"><unit id="u">'
    end = "</unit></file></xliff>"
    made = translate_document(
        "a.xlf", f"{second}{segment.format('initial', 'Sit here')}{end}".encode(), reverse_texts
    ).decode()
    assert made == f"{second}{segment.format('translated', 'here Sit')}{end}"
    kept = f"{second}{segment.format('reviewed', 'Platz')}{end}"
    assert translate_document("a.xlf", kept.encode(), reverse_texts).decode() == kept


def test_xliff_2_fills_segments_without_target() -> None:
    content = (
        b'<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de"><file id="f">'
        b'<unit id="u"><segment><source>old <pc id="1">dog</pc></source></segment></unit></file></xliff>'
    )
    made = translate_document("a.xlf", content, reverse_texts)
    expected = content.replace(b"</source>", b'</source><target><pc id="1">dog</pc> old</target>')
    assert made == expected.replace(b"<segment>", b'<segment state="translated">')


def test_xliff_1_0_gets_no_state_which_it_does_not_know() -> None:
    content = b'<xliff version="1.0"><file><body><trans-unit><source>Sit</source></trans-unit></body></file></xliff>'
    made = translate_document("a.xlf", content, uppercase_texts)
    assert made == content.replace(b"</source>", b"</source><target>SIT</target>")


SDLXLIFF = """\ufeff<?xml version="1.0" encoding="utf-8"?><xliff xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0" \
xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2" sdl:version="1.0"><file source-language="en-US" \
target-language="de-DE"><header><sdl:ref-files/></header><body><trans-unit id="a">\
<source><g id="1">One. Two.</g> 3</source>\
<seg-source><g id="1"><mrk mtype="seg" mid="1">One <x id="9"/>dog.</mrk> <mrk mtype="seg" mid="2">Two.</mrk></g> \
<mrk mtype="seg" mid="3">3</mrk></seg-source>{}<sdl:seg-defs><sdl:seg id="1"{}/><sdl:seg id="2"{}>\
<sdl:value key="x">y</sdl:value></sdl:seg><sdl:seg id="3"/></sdl:seg-defs></trans-unit></body></file></xliff>"""
SDL_TARGET = """<target><g id="1"><mrk mtype="seg" mid="1">{}</mrk> <mrk mtype="seg" mid="2">{}</mrk></g> \
<mrk mtype="seg" mid="3">3</mrk></target>"""
DRAFT = ' conf="Draft" origin="mt"'


def test_sdlxliff_is_translated_by_segment() -> None:
    content = SDLXLIFF.format("", "", "")
    assert collect_texts("a.sdlxliff", content.encode()) == ["One <r1/>dog.", "Two."]
    expected = SDLXLIFF.format(SDL_TARGET.format('ONE <x id="9"/>DOG.', "TWO."), DRAFT, DRAFT)
    assert translate_document("a.sdlxliff", content.encode(), uppercase_texts).decode() == expected
    made = translate_document("a.sdlxliff", content.encode(), lambda texts: ["", "Zwei."]).decode()
    assert made == SDLXLIFF.format(SDL_TARGET.format("", "Zwei."), "", DRAFT)


def test_sdlxliff_keeps_translated_and_locked_segments() -> None:
    content = SDLXLIFF.format(SDL_TARGET.format("Ein Hund.", ""), ' conf="Translated"', "")
    expected = SDLXLIFF.format(SDL_TARGET.format("Ein Hund.", "TWO."), ' conf="Translated"', DRAFT)
    assert translate_document("a.sdlxliff", content.encode(), uppercase_texts).decode() == expected
    locked = SDLXLIFF.format(SDL_TARGET.format("Ein Hund.", ""), ' conf="Translated"', ' locked="true"')
    assert translate_document("a.sdlxliff", locked.encode(), fail_if_called).decode() == locked
    whole = SDLXLIFF.format("<target>Alles</target>", "", "")
    assert translate_document("a.sdlxliff", whole.encode(), fail_if_called).decode() == whole


def test_sdlxliff_segment_that_is_filled_is_not_confirmed_any_more() -> None:
    confirmed = ' conf="ApprovedTranslation" origin="tm" origin-system="Jo\'s TM" percent="100" text-match="Source"'
    content = SDLXLIFF.format(SDL_TARGET.format("", "Zwei."), confirmed, confirmed)
    expected = SDLXLIFF.format(SDL_TARGET.format('ONE <x id="9"/>DOG.', "Zwei."), DRAFT, confirmed)
    assert translate_document("a.sdlxliff", content.encode(), uppercase_texts).decode() == expected


SEGMENT = '<mrk mtype="seg" mid="{}">{}</mrk>'
SEG_SOURCE = " ".join(SEGMENT.format(*each) for each in enumerate(["One.", "Two.", "3", "Four <x id='1'/> five."]))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("<0:Eins.>", "<0:Eins.> <1:TWO.> <2:3> <3:FOUR <x id='1'/> FIVE.>"),
        ("<1:Zwei.>", "<0:ONE.> <1:Zwei.> <2:3> <3:FOUR <x id='1'/> FIVE.>"),
        ("<g id='1'><0:Eins.> <3:Vier.></g>.", "<g id='1'><0:Eins.> <1:TWO.> <2:3> <3:Vier.></g>."),
        ("<9:Neun.>", "<9:Neun.><0:ONE.> <1:TWO.> <2:3> <3:FOUR <x id='1'/> FIVE.>"),
    ],
)
def test_segments_that_an_xliff_target_lacks_are_added_in_order(target: str, expected: str) -> None:
    def write(shorthand: str) -> str:
        return re.sub(r"<(\d):((?:<[^<>]*>|[^<>])*)>", lambda found: SEGMENT.format(*found.groups()), shorthand)

    head, tail = XLIFF.split('    <trans-unit id="1">')[0], "</trans-unit></body></file></xliff>"
    content = f"{head}<trans-unit id='1'><source>x</source><seg-source>{SEG_SOURCE}</seg-source>{{}}{tail}"
    made = translate_document(
        "a.xlf", content.format(f"<target>{write(target)}</target>").encode(), uppercase_texts
    ).decode()
    assert made == content.format(f'<target state="needs-review-translation">{write(expected)}</target>')


def test_segment_inside_a_segment_is_part_of_it() -> None:
    head, tail = XLIFF.split('    <trans-unit id="1">')[0], "</trans-unit></body></file></xliff>"
    source = SEGMENT.format(1, f"One {SEGMENT.format(2, 'two')} three")
    content = f"{head}<trans-unit id='1'><source>x</source><seg-source>{source}</seg-source>{{}}{tail}"
    made = translate_document("a.xlf", content.format("").encode(), uppercase_texts).decode()
    target = SEGMENT.format(1, f"ONE {SEGMENT.format(2, 'TWO')} THREE")
    assert made == content.format(f'<target state="needs-review-translation">{target}</target>')


def test_segmented_xliff_gets_the_state_of_its_target() -> None:
    head, tail = XLIFF.split('    <trans-unit id="1">')[0], "</body></file></xliff>"
    segments = '<mrk mtype="seg" mid="0">{}</mrk> <mrk mtype="seg" mid="1">{}</mrk>'
    source = f"<source>One. Two.</source><seg-source>{segments.format('One.', 'Two.')}</seg-source>"
    content = f"{head}<trans-unit id='1'>{source}</trans-unit>{tail}"
    target = f'<target state="needs-review-translation">{segments.format("ONE.", "TWO.")}</target>'
    made = translate_document("a.xlf", content.encode(), uppercase_texts).decode()
    assert made == content.replace("</trans-unit>", f"{target}</trans-unit>")


def test_mqxliff_is_read_as_xliff() -> None:
    content = XLIFF.replace('id="1">\n', 'id="1" mq:status="NotStarted" xmlns:mq="MQXliff">\n')
    assert collect_texts("a.mqxliff", content.encode()) == collect_texts("a.xliff", XLIFF.encode())


def test_mqxliff_status_of_filled_units_is_machine_translated() -> None:
    head, tail = XLIFF.split('    <trans-unit id="1">')[0], "</body></file></xliff>"
    head = head.replace('version="1.2"', 'version="1.2" xmlns:mq="MQXliff"')
    unit = '<trans-unit id="1" mq:status="{}"{}><source>Sit</source><target{}>{}</target></trans-unit>'
    confirmed, locked = ("ManuallyConfirmed", "", "", "Sitz"), ("NotStarted", ' mq:locked="locked"', "", "")
    content, expected = (
        head + "".join(unit.format(*fields) for fields in [filled, confirmed, locked]) + tail
        for filled in [
            ("ManuallyConfirmed", "", "", ""),
            ("MachineTranslated", "", ' state="needs-review-translation"', "SIT"),
        ]
    )
    assert translate_document("a.mqxliff", content.encode(), uppercase_texts).decode() == expected


# Gettext

PO = r"""# Words of a program
#, fuzzy
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=n%10;\n"

#: window.c:12
#, c-format
msgctxt "menu"
msgid "Open the \"old\" <b>file</b> %s & go"
msgstr ""

msgid "already"
msgstr "schon"

#, fuzzy
msgid "doubtful"
msgstr "zweifelhaft"

msgid ""
"  two lines,\n"
"\n"
"and a second one\n"
msgstr ""

msgid "one file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid "1.2 -"
msgstr ""

#~ msgid "gone"
#~ msgstr ""
"""


def test_po_fills_untranslated_messages_and_keeps_others() -> None:
    lines = ["  two lines,", "and a second one"]
    texts = ['Open the "old" <r1>file</r1> %s &amp; go', *map(str.strip, lines), "one file", "%d files"]
    assert collect_texts("a.po", PO.encode()) == texts
    made = translate_document("a.po", PO.encode(), lambda texts: [text.replace("e", "E") for text in texts]).decode()
    expected = PO
    for message, filled in (
        ('''%s & go"\nmsgstr ""''', '''%s & go"\nmsgstr "OpEn thE \\"old\\" <b>filE</b> %s & go"'''),
        (
            '''second one\\n"\nmsgstr ""''',
            '''second one\\n"\nmsgstr ""\n"  two linEs,\\n"\n"\\n"\n"and a sEcond onE\\n"''',
        ),
        (
            '''msgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""''',
            '''msgstr[0] "onE filE"\nmsgstr[1] "%d filEs"\nmsgstr[2] "%d filEs"''',
        ),
    ):
        assert message in expected
        expected = expected.replace(message, filled)
    assert made == expected


def test_po_without_translate_toolkit_is_refused_and_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_supported_extensions() == list(DOCUMENT_EXTENSIONS)
    for name in ("translate", "translate.storage", "translate.storage.poparser", "translate.storage.pypo"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DocumentError, match=r"a\.po needs translate-toolkit; install it with pip install"):
        translate_document("a.po", PO.encode(), fail_if_called)
    monkeypatch.setattr("regard.documents.document.find_spec", lambda name: None)
    assert list_supported_extensions() == [ending for ending in DOCUMENT_EXTENSIONS if ending != ".po"]


def test_po_header_determines_the_number_of_plural_forms() -> None:
    plural = b'\nmsgid "one file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n'
    for header, forms in ((b"nplurals=1", ["%D FILES"]), (b"", ["ONE FILE", "%D FILES"])):
        head = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: ' + header + b';\\n"\n'
        made = translate_document("a.po", head + plural, uppercase_texts).decode()
        assert re.findall(r'msgstr\[\d\] "(.*)"', made) == forms


def test_plain_text_keeps_form_feeds_at_the_ends_of_a_line() -> None:
    assert translate_document("a.txt", b"\x0cThe dog \x1c\r\n", uppercase_texts) == b"\x0cTHE DOG \x1c\r\n"


def test_po_copies_lines_without_words_of_a_message() -> None:
    content = b'msgid "<b>1</b> <b>2</b>\\n100 %\\nThe dog"\nmsgstr ""\n'
    made = translate_document("a.po", content, uppercase_texts).decode()
    assert made.endswith('msgstr ""\n"<b>1</b> <b>2</b>\\n"\n"100 %\\n"\n"THE DOG"\n')


def test_po_in_latin_1_is_read_and_written_as_utf_8() -> None:
    content = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n\nmsgid "é a"\nmsgstr ""\n'
    made = translate_document("a.po", content.encode("latin-1"), uppercase_texts).decode()
    assert 'msgstr "É A"' in made
    assert "charset=UTF-8" in made


# Markdown

MARKDOWN = """---
title: The page
---

# The *old* dog {#dog}

A heading
=========

The **old dog** sees `code here` and [the house](http://x.org/a_(b) "A title"),
see [ref][r] or ![an image](img.png).\x20\x20
A hard break, snake_case & co &copy; <b>bold</b><br>x.

> quoted text
> goes on
lazy line

- one item
  goes on

      indented code in a list

- [ ] task *item*
1. first
   - nested item

| Head one | two |
|---|:--:|
| a \\| b | `x | y` c |

```python
code = "text"
- more code
```

    indented code

<div>
text in a block of HTML
</div>

<!-- comment

still comment -->

[r]: http://x.org "Title"

Footnote[^1] and $x_1 + y$ formula :smile: here.

[^1]: The note text.

$$
a formula
$$

{% include file %}
Term
: Definition text
***
Last line without end"""
MARKDOWN_TEXTS = [
    "The <r1>old</r1> dog",
    "A heading",
    "The <r1>old dog</r1> sees <r2/> and <r3>the house</r3>, see <r4>ref</r4> or <r5>an image</r5>. <r6/> A hard "
    "break, snake_case &amp; co &copy; <r7>bold</r7> <r8/> x.",
    "quoted text goes on lazy line",
    "one item goes on",
    "task <r1>item</r1>",
    "first",
    "nested item",
    "Head one",
    "two",
    "a | b",
    "Footnote<r1/> and <r2/> formula <r3/> here.",
    "The note text.",
    "Term",
    "Definition text",
    "Last line without end",
]


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_markdown_keeps_everything_but_its_text(end: str) -> None:
    content = MARKDOWN.replace("\n", end).encode()
    assert collect_texts("a.md", content) == MARKDOWN_TEXTS
    expected, rest = MARKDOWN[:20], MARKDOWN[20:]
    for word in re.findall(r"[a-zA-Z_]+", re.sub(r"<[^<>]*>|&\w+;", " ", " ".join(MARKDOWN_TEXTS))):
        before, rest = re.split(rf"\b{word}\b", rest, maxsplit=1)
        expected += before + word.upper()
    expected += rest
    assert translate_document("a.markdown", content, uppercase_texts).decode() == expected.replace("\n", end)


@pytest.mark.parametrize(
    ("source", "answer", "expected"),
    [
        ("one", "1. eins", "1\\. eins"),
        ("one", "# eins", "\\# eins"),
        ("one", "- eins", "\\- eins"),
        ("- one", "*eins* [x](y) `z` &lt;b>", "- \\*eins\\* \\[x\\](y) \\`z\\` \\<b>"),
        ("a * b", "b * a", "b * a"),
        ("\\*x\\* 2 * 3", "*y* 3 * 2", "\\*y\\* 3 \\* 2"),
        ("a < b", "x &lt; y &lt;b>", "x < y \\<b>"),
        ("a_b _c_", "d_e <r1>f</r1>", "d_e _f_"),
        ("a **b** _c_", "<r1></r1>d <r2>e</r2>", "d _e_"),
        ("a **b**", "d", "d"),
        ("see [the page]\n\n[the page]: x", "siehe <r1>Seite</r1>", "siehe [Seite][the page]\n\n[the page]: x"),
        ("not [a link]", "kein [Link]", "kein [Link]"),
        ("one two\nthree four", "eins - zwei drei", "eins -\nzwei drei"),
        ("one two\nthree four", "eins zwei - drei", "eins zwei - drei"),
        ("*a [b* c](d) e", "x <r1>y</r1> z", "x [y](d) z"),
        ("one  \ntwo", "eins <r1/> - zwei", "eins  \n\\- zwei"),
        ("a|b\n-|-\nc|d", None, "A|B\n-|-\nC|D"),
        ("a|b\n-|-", "x | y", "x \\| y|x \\| y\n-|-"),
        ("one", "&lt; &amp; &lt;b &amp;copy; AT&amp;T &lt;1@x.org>", "< & \\<b \\&copy; AT&T \\<1@x.org>"),
        ("AT&amp;T, R&D", "F&amp;E, AT&amp;T &amp; x", "F&amp;E, AT&T & x"),
        ("say &lt;b&gt;", "sag &lt;b&gt; &lt;i&gt;", "sag &lt;b&gt; \\<i>"),
        ("&copy; x", "y &copy; &copy; ©", "y &copy; &copy; ©"),
    ],
)
def test_markdown_text_does_not_become_markup(source: str, answer: str | None, expected: str) -> None:
    def translate(texts: Sequence[str]) -> list[str]:
        return uppercase_texts(texts) if answer is None else [answer] * len(texts)

    assert translate_document("a.md", source.encode(), translate).decode() == expected


R_MARKDOWN = """---
title: "My report"
output: {html_document: default}
---

```{r setup, include=FALSE}
text <- "not text"
# no heading
```

# The end {#sec-end .unnumbered}

The mean `r mean(x)` of @fig-plot [@knuth1984; -@doe99], \\@ref(fig:plot), [old]{.smallcaps} `x`{.r} \\cite{doe}.

````{verbatim}
```{python}
#| label: fig-plot
```
````

::: {.callout-note title="No text"}
In a note with {{< var name >}}.
:::

![A caption](img.png){#fig-a fig-alt="Alt" width=50%}

{{< include _x.qmd >}}

\\newpage

: A table {#tbl-x}
"""


@pytest.mark.parametrize("ending", [".Rmd", ".qmd"])
def test_r_markdown_keeps_code_chunks_front_matter_and_references(ending: str) -> None:
    texts = ["The end", "The mean <r1/> of <r2/> [<r3/>; -<r4/>], <r5/>, [old]<r6/> <r7/> <r8/>."]
    texts += ["In a note with <r1/>.", "A caption", "A table"]
    assert collect_texts(f"a{ending}", R_MARKDOWN.encode()) == texts
    expected = R_MARKDOWN
    for words in ("The end", "The mean", " of @", "[old]", "In a note with", "A caption", "A table"):
        expected = expected.replace(words, words.upper())
    assert translate_document(f"a{ending}", R_MARKDOWN.encode(), uppercase_texts).decode() == expected


def test_markdown_keeps_formulas_in_escaped_parentheses() -> None:
    assert translate_document("a.qmd", rb"Let \(a_1 + b\) be (old).", uppercase_texts) == rb"LET \(a_1 + b\) BE (OLD)."


def test_markdown_keeps_display_formulas_inside_a_paragraph() -> None:
    assert (
        translate_document("a.md", b"dog $$E = mc^2$$ cat $x$ for $5", uppercase_texts)
        == b"DOG $$E = mc^2$$ CAT $x$ FOR $5"
    )


XLIFF_1_LANGUAGES = b'<xliff version="1.2"><file source-language="%s" target-language="%s">%s</file></xliff>'
XLIFF_2_LANGUAGES = b'<xliff version="2.0" srcLang="%s" trgLang="%s"><file>%s</file></xliff>'


@pytest.mark.parametrize("document", [XLIFF_1_LANGUAGES, XLIFF_2_LANGUAGES], ids=["1.2", "2.0"])
def test_xliff_of_other_languages_is_refused(document: bytes) -> None:
    german = document % (b"en-US", b"deu", b"")
    assert translate_document("a.xliff", german, fail_if_called, languages=("en", "de")) == german
    assert translate_document("a.xliff", german, fail_if_called, languages=(None, None)) == german
    with pytest.raises(DocumentError, match=r"a\.xliff declares deu as its target language, not fr"):
        translate_document("a.xliff", german, fail_if_called, languages=("en", "fr"))


def test_xliff_target_that_is_filled_is_not_approved() -> None:
    unit = b'<trans-unit id="1" approved="%s"><source>dog</source><target state="%s">%s</target></trans-unit>'
    file = b'<xliff version="1.2"><file><body>%s</body></file></xliff>'
    before, after = (
        file % (unit % one) for one in ((b"yes", b"new", b""), (b"no", b"needs-review-translation", b"DOG"))
    )
    assert translate_document("a.xliff", before, uppercase_texts) == after


def test_xliff_keeps_cdata_sections_of_sources_and_notes() -> None:
    unit = b"<trans-unit><source><![CDATA[a <b> & <![CDATA[ dog]]></source>%s<note><![CDATA[ <]]></note></trans-unit>"
    file = b'<xliff version="1.2"><file><body>%s</body></file></xliff>'
    target = b'<target state="needs-review-translation">A &lt;B&gt; &amp; &lt;![CDATA[ DOG</target>'
    assert translate_document("a.xliff", file % unit % b"", uppercase_texts) == file % unit % target


def test_windows_line_ends_count_as_one_line() -> None:
    limits = DocumentLimits(tags=2)
    assert translate_document("a.txt", b"one\r\ntwo\r\n", uppercase_texts, limits) == b"ONE\r\nTWO\r\n"
    with pytest.raises(DocumentError, match="has 3 tags or lines; the maximum is 2"):
        translate_document("a.txt", b"one\r\ntwo\n\rthree", uppercase_texts, limits)


def test_very_long_markdown_paragraph_stays_as_it_is() -> None:
    content = b"word " * 10_000
    assert translate_document("a.md", content, fail_if_called) == content


MARKDOWN_PARTS = [
    *("dog", "an old ", "*", "**", "_", "`", "``", "[", "]", "](x)", "[x]", "[x]: y", "![", "\\", "\\*", "<b>", "</b>"),
    *(
        "<br>",
        "<div>",
        "\n",
        "\n\n",
        "  \n",
        "\r\n",
        "    ",
        "\t",
        "- ",
        "1. ",
        "> ",
        "# ",
        "---\n",
        "===",
        "|",
        "|-|-|",
    ),
    *("```", "~~~\n", "$", "$$", "<!--", "-->", "&amp;", "&", "{{", "}}", ":::", "[^1]", ": ", "~~", "+++", "\x0b"),
]


@given(st.lists(st.sampled_from(MARKDOWN_PARTS), max_size=25).map("".join))
def test_markdown_translated_to_itself_stays_byte_identical(content: str) -> None:
    assert translate_document("a.md", content.encode(), copy_texts) == content.encode()
    translate_document("a.md", content.encode(), reverse_texts)


def test_markdown_links_and_emphasis_are_not_empty_after_translation() -> None:
    def translate(texts: Sequence[str]) -> list[str]:
        return [
            tag_projection.restore_markup(markup.parse_markup(text), ["siehe jetzt hier"], [[(0, 0), (2, 1)]])
            for text in texts
        ]

    assert translate_document("a.md", b"see [page](x.md) now **there**", translate) == b"siehe [jetzt](x.md) **hier**"
    assert translate_document("a.md", b"see ![page](x.png) now *it*", translate) == b"siehe ![jetzt](x.png) *hier*"


MARKDOWN_CHARACTERS = [
    *("AT&T", "AT&amp;T", "R&amp;D;", "&T;", "&copy", "&copy;", "©", "&#169;", "&amp;copy;", "\\&copy;", "&", "\\&"),
    *("<", "<3", "&lt;", "&lt;b&gt;", "\\<", ">", "&gt;", "&nbsp;", "\xa0", '"', "&quot;", "&#10;", "&#x1;", "&#42;x"),
]


@given(st.lists(st.sampled_from(MARKDOWN_CHARACTERS), max_size=8), st.sampled_from(["Say {}", "# A {}", "a|{}\n-|-"]))
def test_markdown_characters_are_written_as_in_the_source(characters: list[str], template: str) -> None:
    content = template.format(" ".join(["dog", *characters, "end"]))
    for translate in (
        lambda texts: [f"{text}s" for text in texts],
        lambda texts: [_copy_words(f"{text}s") for text in texts],
    ):
        made = translate_document("a.md", content.encode(), translate).decode()
        assert made == content.replace("end", "ends").replace("a|", "as|")


def _copy_words(text: str) -> str:
    marked = markup.parse_markup(text)
    plains = [piece.plain_text for piece in marked.blocks]
    links = [[(number, number) for number in range(len(plain.split()))] for plain in plains]
    return tag_projection.restore_markup(marked, plains, links)


# HTML

PAGE = """<!DOCTYPE html>
<html lang=en><head><meta charset="utf-8"><title>The page &amp; more</title>
<style>p { color: red }</style><script>if (a<b) document.write("<p>text</p>")</script>
<link rel=stylesheet title="Main look" href=x.css></head>
<body class='x'><!-- a <b>comment</b> -->
<h1 title="A heading">Old <em>dogs</em></h1>
<p>The <b>old dog</b> sees
   <a href="x?a=1&b=2" title='The "link"'>the&nbsp;house</a>, &copy; <code>x &lt; y</code> it<br>sleeps.
<p><b>All bold</b>
<ul><li>one<li>two <img src=i.png alt="An image"></ul>
<pre>kept   text</pre><input placeholder=Name><p translate="no">Regard</p><td>12.5 %
<p>AT&T &copy 2020 <3
</body></html>
"""


def test_html_is_translated_by_block_with_inline_tags() -> None:
    assert collect_texts("a.html", PAGE.encode()) == [
        "A heading",
        'The "link"',
        "An image",
        "Name",
        "The page &amp; more",
        "Old <r1>dogs</r1>",
        "The <r1>old dog</r1> sees <r2>the&nbsp;house</r2>, &copy; <r3/> it <r4/> sleeps.",
        "All bold",
        "one",
        "two",
        "AT&amp;T © 2020 &lt;3",
    ]


def test_html_outside_of_text_stays_byte_identical() -> None:
    expected = PAGE
    for old, new in [
        ("The page &amp; more", "THE PAGE &amp; MORE"),
        ('"A heading">Old <em>dogs', '"A HEADING">OLD <em>DOGS'),
        ("The <b>old dog</b> sees\n   ", "THE <b>OLD DOG</b> SEES\n   "),
        ("'The \"link\"'>the&nbsp;house</a>", "'THE \"LINK\"'>THE&nbsp;HOUSE</a>"),
        (" it<br>sleeps.", " IT<br>SLEEPS."),
        ("All bold", "ALL BOLD"),
        ("<li>one<li>two", "<li>ONE<li>TWO"),
        ("An image", "AN IMAGE"),
        ("=Name", "=NAME"),
    ]:
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    assert translate_document("a.htm", PAGE.encode(), uppercase_texts).decode() == expected


@pytest.mark.parametrize(
    ("source", "answer", "language", "expected"),
    [
        ('<html lang="en"><p>house</p>', "بيت", "ar", '<html dir="rtl" lang="ar"><p>بيت</p>'),
        ("<HTML><p dir=ltr>house</p>", "בית", None, '<HTML dir="rtl"><p dir=rtl>בית</p>'),
        (
            "<html lang='ar' dir='rtl'><p dir=\"RTL\">بيت</p>",
            "house",
            "en",
            "<html lang='en' dir='ltr'><p dir=\"ltr\">house</p>",
        ),
        (
            '<html lang="en" dir="ltr"><p dir="auto">house</p>',
            "Haus",
            "de",
            '<html lang="en" dir="ltr"><p dir="auto">Haus</p>',
        ),
        ("<p>house</p>", "家", "ja", "<p>家</p>"),
    ],
)
def test_html_direction_is_that_of_the_translation(
    source: str, answer: str, language: str | None, expected: str
) -> None:
    made = translate_document("a.html", source.encode(), lambda texts: [answer], languages=(None, language))
    assert made.decode() == expected


def test_html_inline_tags_follow_their_words() -> None:
    content = b"<p>see <b>the old</b> dog <i>now</i></p>"
    assert translate_document("a.html", content, reverse_texts) == b"<p><i>now</i> dog <b>old the</b> see</p>"


def test_html_tags_left_open_in_their_block_keep_their_position() -> None:
    content = b"<div>a b <b>c d<p>e f <i>g h</p>i j</i></b> k l</div>"
    assert (
        translate_document("a.html", content, reverse_texts) == b"<div>b a <b>d c<p>f e <i>h g</p>j i</i></b> l k</div>"
    )


HTML_CHARACTERS = [
    *("AT&T", "AT&amp;T", "&copy", "&copy;", "©", "&#169;", "&#169", "&amp;copy;", "&", '"', "&quot;", "&#34;"),
    *("<", "<3", "&lt;", "&lt;b&gt;", ">", "&gt", "]]&gt;", "&nbsp;", "&nbsp", "'", "&#39;", "é", "&eacute;"),
]


@given(
    st.lists(st.sampled_from(HTML_CHARACTERS), max_size=8),
    st.sampled_from(["<p>{}</p>", "<p>a <b>dog {}</b></p>", '<img alt="{}">', "<img alt='{}'>"]),
)
def test_html_characters_are_written_as_in_the_source(characters: list[str], template: str) -> None:
    written = [character for character in characters if character != template[-2]]  # a quote would end the attribute
    content = template.format(" ".join(["dog", *written, "end"]))
    for translate in (
        lambda texts: [text.replace("end", "ends") for text in texts],
        lambda texts: [_copy_words(text.replace("end", "ends")) for text in texts],
    ):
        made = translate_document("a.html", content.encode(), translate).decode()
        assert made == content.replace("end", "ends")


HTML_SIGNS = ["<", "&copy", "&", ">", "&#169", "&lt;", "©"]
TWO_FORMS = ["/ &sol;", "! &excl;", "? &quest;", "# &num;", "= &equals;", "; &semi;", "] &#93;"]


@given(st.sampled_from(HTML_SIGNS), st.sampled_from(TWO_FORMS), st.sampled_from(["x", "b;", "amp"]))
def test_html_signs_beside_new_neighbours_keep_their_meaning(sign: str, two: str, word: str) -> None:
    answers: list[str] = []

    def translate(texts: Sequence[str]) -> list[str]:
        orders = permutations(texts[0].split())
        answers.extend("".join(words) for _, words in zip(texts, orders, strict=True))
        return answers

    made = translate_document("a.html", (f"<p>{sign} {two} {word}</p>" * factorial(4)).encode(), translate).decode()
    for text, answer in zip(made.removeprefix("<p>").removesuffix("</p>").split("</p><p>"), answers, strict=True):
        assert html.unescape(text) == html.unescape(answer)
        assert not re.search(r"<[A-Za-z!?/]|\]\]>", text)


def test_html_keeps_its_legacy_encoding() -> None:
    content = '<meta charset="iso-8859-1"><p>caf\xe9 “x”</p>'.encode("cp1252")
    made = translate_document("a.html", content, lambda texts: [f"{text} Ω" for text in texts])
    assert made == '<meta charset="iso-8859-1"><p>caf\xe9 “x” &#937;</p>'.encode("cp1252")


def test_html_keeps_utf_16() -> None:
    content = b"\xff\xfe" + "<p>old dog</p>".encode("utf-16-le")
    assert translate_document("a.html", content, reverse_texts) == b"\xff\xfe" + "<p>dog old</p>".encode("utf-16-le")


@pytest.mark.parametrize(
    "answer",
    ["Hund", "<r1>alter Hund", "alter</r1> <r1>Hund", "<r2>alter</r2> Hund", "<r1/>Hund", "<r1><r1>x</r1></r1> Hund"],
)
def test_inline_tags_lost_by_the_translator_are_restored(answer: str) -> None:
    made = translate_document("a.html", b"<p>an <b>old</b> dog</p>", lambda texts: [answer]).decode()
    words = " ".join(re.sub(r"</?r\d/?>", "", answer).split())
    assert made == f"<p>{words}<b></b></p>"


def test_translation_cannot_inject_html_markup() -> None:
    made = translate_document("a.html", b"<p>x</p>", lambda texts: ["<script>1</script> & &lt;b> &eacute; &amp;"])
    assert made == "<p>&lt;script&gt;1&lt;/script&gt; &amp; &lt;b&gt; é &amp;</p>".encode()


def test_translation_cannot_break_out_of_an_html_attribute() -> None:
    for written, filled in (
        (b"'x'", b"'\" onerror=&#39;a&#39;&gt;'"),
        (b'"x"', b"\"&quot; onerror='a'&gt;\""),
        (b"x", b"\"&quot; onerror='a'&gt;\""),
        (b"'&>x'", b"'\" onerror=&#39;a&#39;>'"),
    ):
        made = translate_document("a.html", b"<img alt=" + written + b">", lambda texts: ["\" onerror='a'>"])
        assert made == b"<img alt=" + filled + b">"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("one<br>two", "EINS<br>ZWEI"),
        ("one.<br> two", "EINS<br> ZWEI"),
        ("one. <br/>two", "EINS <br/>ZWEI"),
        ("one<br>\r\n<img src=x>\ttwo", "EINS<br>\r\n<img src=x>\tZWEI"),
    ],
)
def test_html_spacing_around_line_breaks_and_images_is_that_of_the_source(source: str, expected: str) -> None:
    def translate(texts: Sequence[str]) -> list[str]:
        assert re.fullmatch(r"one\.? (?:<r\d/> +)+two", texts[0]), "two words for the model"
        return [re.sub(r"one\.?", "EINS", texts[0]).replace("two", "ZWEI")]

    made = translate_document("a.html", f"<p>{source}</p>".encode(), translate).decode()
    assert made == f"<p>{expected}</p>"


@pytest.mark.parametrize("content", ["<p>dog<wbr>\r\n<br>dog</p>", "<p>dog<wbr> \n<br>dog<wbr><br> dog</p>"])
def test_html_white_space_between_a_tag_and_a_line_break_is_kept(content: str) -> None:
    assert translate_document("a.html", content.encode(), uppercase_texts).decode() == content.replace("dog", "DOG")


def test_html_line_breaks_between_words_are_kept() -> None:
    content = b"<p>one two\n   three four\r\n five</p>"
    made = translate_document("a.html", content, lambda texts: ["eins zwei drei vier"])
    assert made == b"<p>eins zwei\n   drei\r\n vier</p>"


@pytest.mark.parametrize(
    ("source", "answer", "expected"),
    [
        ("AT&T", "die AT&amp;T", "die AT&T"),
        ("R&D", "&amp;copy", "&amp;copy"),
        ("R&D", "&amp;ampa", "&amp;ampa"),
        ("a < b", "x &lt; y", "x < y"),
        ("a < b", "x &lt;y", "x &lt;y"),
        ("a > b &gt; c", "x &gt; y &gt; z", "x > y &gt; z"),
        ("a &#62; b", "x &gt; y", "x &#62; y"),
        ("a > b", "x ]]&gt; y &gt;", "x ]]&gt; y &gt;"),
        ('a "b" &quot;c&quot;', "x &quot;y&quot; &quot;z&quot; &quot;", 'x "y" &quot;z&quot; "'),
        ("&copy a &copy; b ©", "© x © y © z ©", "&copy x &copy; y © z ©"),
        ("&copy a &not b", "©x ¬; y", "©x ¬; y"),
        ("a < b / c &sol; d", "x &lt;&sol;b y", "x &lt;/b y"),
        ("a < b ! c &excl; d", "x &lt;&excl;b y", "x &lt;!b y"),
        ("&copy a ; &semi; b", "&copy;&semi; x", "©; x"),
        ("a & b # c &num; d", "x &amp;&num;65; y", "x &amp;#65; y"),
        ("a > b ] c &#93; d", "x &#93;&#93;&gt; y", "x ]&#93;&gt; y"),
    ],
)
def test_html_special_characters_are_written_as_in_the_source(source: str, answer: str, expected: str) -> None:
    assert (
        translate_document("a.html", f"<p>{source}</p>".encode(), lambda texts: [answer]).decode()
        == f"<p>{expected}</p>"
    )


# Word


@cache
def make_docx() -> bytes:
    document = docx.Document()
    document.core_properties.title = "Old title"
    document.add_heading("The old house", 1)
    paragraph = document.add_paragraph("We see ")
    paragraph.add_run("the old dog").bold = True
    paragraph.add_run(" and\ta ")
    paragraph.add_run("red").italic = True
    paragraph.add_run(" cat.")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text = "left cell"
    table.cell(0, 1).text = "12.50"
    document.sections[0].header.paragraphs[0].text = "the header"
    document.sections[0].footer.paragraphs[0].text = "the footer"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_docx_translates_only_body_table_header_and_footer() -> None:
    content = make_docx()
    made = translate_document("a.docx", content, reverse_texts)
    document = docx.Document(io.BytesIO(made))
    assert [paragraph.text for paragraph in document.paragraphs] == [
        "house old The",
        "cat. red\ta and dog old the see We",
    ]
    assert document.paragraphs[0].style
    assert document.paragraphs[0].style.name == "Heading 1"
    runs = {run.text: run for run in document.paragraphs[1].runs}
    assert [text for text, run in runs.items() if run.bold] == ["dog old the"]
    assert [text for text, run in runs.items() if run.italic] == ["red"]
    assert [cell.text for cell in document.tables[0].rows[0].cells] == ["cell left", "12.50"]
    assert document.sections[0].header.paragraphs[0].text == "header the"
    assert document.sections[0].footer.paragraphs[0].text == "footer the"
    before, after = read_zip(content), read_zip(made)
    assert list(before) == list(after)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"word/document.xml", "word/header1.xml", "word/footer1.xml"}


def wrap_in_docx(body: str) -> bytes:
    """Return a .docx file with this body."""
    declaration = "<?xml version='1.0' encoding=\"UTF-8\" standalone='yes'?>\r\n"
    document = f"{declaration}<w:document {W_XMLNS}><w:body>{body}</w:body></w:document>"
    return make_zip({CONTENT_TYPES: "<Types/>", "word/document.xml": document})


def read_docx_body(content: bytes) -> str:
    document = read_zip(content)["word/document.xml"].decode()
    etree.fromstring(document.encode())
    return document.partition("<w:body>")[2].removesuffix("</w:body></w:document>")


def make_run(text: str, properties: str = "") -> str:
    return f'<w:r>{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'


BOLD = "<w:rPr><w:b/></w:rPr>"
CUE = b"0:00:01,0 --> 0:00:02,0\n"
FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'


@pytest.mark.parametrize(
    ("paragraph", "text", "expected"),
    [
        # Adjacent runs with equal formatting are merged, and spelling marks are dropped.
        (
            f'<w:r w:rsidR="1"><w:t>un</w:t></w:r><w:proofErr w:type="spellStart"/>{make_run("do it")}',
            "undo it",
            '<w:r w:rsidR="1"><w:t>it undo</w:t></w:r>',
        ),
        # A bold word keeps its formatting; unformatted words need no tags.
        (
            f"<w:pPr><w:jc/></w:pPr>{make_run('an ')}{make_run('old', BOLD)}{make_run(' dog')}",
            "an <r1>old</r1> dog",
            f"<w:pPr><w:jc/></w:pPr>{make_run('dog ')}{make_run('old', BOLD)}{make_run(' an')}",
        ),
        # A paragraph in one format has no tags.
        (make_run("an old", BOLD) + make_run(" dog", BOLD), "an old dog", make_run("dog old an", BOLD)),
        # A tab and a footnote stay beside their words and keep their run properties.
        (
            f"<w:r><w:t>a b</w:t><w:tab/><w:t>c</w:t></w:r><w:r>{BOLD}<w:footnoteReference w:id='2'/></w:r>"
            f"{make_run(' d')}",
            "a b <r1/> c<r2/> d",
            f"<w:r><w:t>d</w:t><w:tab/><w:t>c</w:t></w:r><w:r>{BOLD}<w:footnoteReference w:id='2'/></w:r>"
            f"{make_run(' b a')}",
        ),
        # A hyperlink encloses its words.
        (
            f'{make_run("see ")}<w:hyperlink r:id="rId1" xmlns:r="r">{make_run("the page", BOLD)}</w:hyperlink>'
            f"{make_run(' now')}",
            "see <r1>the page</r1> now",
            f'{make_run("now ")}<w:hyperlink r:id="rId1" xmlns:r="r">{make_run("page the", BOLD)}</w:hyperlink>'
            f"{make_run(' see')}",
        ),
        # So does a HYPERLINK field; any other field moves as a whole with its result.
        (
            f'{make_run("see ")}{FIELD.format("begin")}<w:r><w:instrText> HYPERLINK "x" </w:instrText></w:r>'
            f"{FIELD.format('separate')}{make_run('the page', BOLD)}{FIELD.format('end')}{make_run(' now')}",
            "see <r1>the page</r1> now",
            f'<w:r><w:t xml:space="preserve">now </w:t><w:fldChar w:fldCharType="begin"/><w:instrText> HYPERLINK "x" '
            f'</w:instrText><w:fldChar w:fldCharType="separate"/></w:r>{make_run("page the", BOLD)}<w:r>'
            '<w:fldChar w:fldCharType="end"/><w:t xml:space="preserve"> see</w:t></w:r>',
        ),
        (
            f"{make_run('see page ')}{FIELD.format('begin')}<w:r><w:instrText>PAGE</w:instrText></w:r>"
            f"{FIELD.format('separate')}{make_run('seven')}{FIELD.format('end')}{make_run(' now')}",
            "see page <r1/> now",
            '<w:r><w:fldChar w:fldCharType="begin"/><w:instrText>PAGE</w:instrText>'
            '<w:fldChar w:fldCharType="separate"/><w:t xml:space="preserve">seven</w:t><w:fldChar w:fldCharType="end"/>'
            '<w:t xml:space="preserve"> now page see</w:t></w:r>',
        ),
        # A bookmark encloses its words; one that ends inside another element keeps both ends.
        (
            f'{make_run("a ")}<w:bookmarkStart w:id="0"/>{make_run("b")}<w:bookmarkEnd w:id="0"/>{make_run(" c")}',
            "a <r1>b</r1> c",
            f'{make_run("c ")}<w:bookmarkStart w:id="0"/>{make_run("b")}<w:bookmarkEnd w:id="0"/>{make_run(" a")}',
        ),
        (
            f'<w:bookmarkStart w:id="0"/>{make_run("a ")}<w:hyperlink>{make_run("b ")}<w:bookmarkEnd w:id="0"/>'
            f"{make_run('c')}</w:hyperlink>",
            "a <r1>b <r2/>c</r1>",
            None,
        ),
        # Tracked deletions are not translated.
        (f"<w:del><w:r><w:delText>old</w:delText></w:r></w:del>{make_run('new')}", "new", None),
        # Entities are kept as written.
        (make_run("R&amp;D &#233;t &lt;b&gt;"), "R&amp;D &#233;t &lt;b&gt;", make_run("&lt;b&gt; &#233;t R&amp;D")),
        # A content control encloses its words, with its properties first.
        (
            f"{make_run('to ')}<w:sdt><w:sdtPr/><w:sdtContent>{make_run('whom')}</w:sdtContent></w:sdt>"
            f"{make_run(' it')}",
            "to <r1>whom</r1> it",
            f"{make_run('it ')}<w:sdt><w:sdtPr/><w:sdtContent>{make_run('whom')}</w:sdtContent></w:sdt>"
            f"{make_run(' to')}",
        ),
    ],
    ids=[
        "adjacent runs",
        "bold word",
        "bold paragraph",
        "tab and footnote",
        "hyperlink",
        "hyperlink field",
        "page number field",
        "bookmark",
        "bookmark across a hyperlink",
        "tracked deletion",
        "entities",
        "content control",
    ],
)
def test_docx_paragraph_is_one_text_and_formatting_follows_words(
    paragraph: str, text: str, expected: str | None
) -> None:
    content = wrap_in_docx(f"<w:p>{paragraph}</w:p><w:sectPr/>")
    assert collect_texts("a.docx", content) == [text]
    made = read_docx_body(translate_document("a.docx", content, reverse_texts))
    if expected is not None:
        assert made == f"<w:p>{expected}</w:p><w:sectPr/>"


def test_docx_text_box_is_translated_and_moves_as_a_whole() -> None:
    box = "<w:pict><w:txbxContent><w:p>{}</w:p></w:txbxContent></w:pict>"
    inside = box.format(make_run("in side"))
    content = wrap_in_docx(f"<w:p>{make_run('one ')}<w:r>{inside}</w:r>{make_run('two three')}</w:p>")
    assert collect_texts("a.docx", content) == ["one <r1/>two three", "in side"]
    made = read_docx_body(translate_document("a.docx", content, reverse_texts))
    assert box.format(make_run("side in")) in made
    assert re.sub(r"<w:pict>.*</w:pict>|<[^>]*>", "", made) == "three two one"


def test_docx_paragraphs_without_words_stay_byte_identical() -> None:
    paragraph = "<w:p ><w:r><w:t>12.5</w:t></w:r  ></w:p><w:p/><!-- x --><w:tbl><w:tc><w:p></w:p></w:tc></w:tbl>"
    content = wrap_in_docx(f"{paragraph}<w:p>{make_run('x')}</w:p>")
    assert (
        read_docx_body(translate_document("a.docx", content, uppercase_texts))
        == f"{paragraph}<w:p>{make_run('X')}</w:p>"
    )


def test_docx_with_other_namespace_prefixes_is_translated() -> None:
    part = (
        '<d:document xmlns:d="http://purl.oclc.org/ooxml/wordprocessingml/main"><d:body><d:p><d:r><d:t>an old</d:t>'
        "</d:r></d:p></d:body></d:document>"
    )
    made = translate_document("a.docx", make_zip({CONTENT_TYPES: "<Types/>", "word/document.xml": part}), reverse_texts)
    assert read_zip(made)["word/document.xml"].decode() == part.replace("an old", "old an")


@pytest.mark.parametrize(("answer", "end"), [("OLD <r1/> DOG<r2>X</r2>", "DOG"), ("OLD <r1/> DOG <r2>X</r2>", "DOG ")])
def test_docx_marks_white_space_as_kept_only_where_it_is_needed(answer: str, end: str) -> None:
    bold = f"<w:r>{BOLD}<w:t>{{}}</w:t></w:r>"
    content = wrap_in_docx(f"<w:p><w:r><w:t>old</w:t><w:br/><w:t>dog</w:t></w:r>{bold.format('x')}</w:p>")
    space = ' xml:space="preserve"' if end[-1] == " " else ""
    expected = f"<w:p><w:r><w:t>OLD</w:t><w:br/><w:t{space}>{end}</w:t></w:r>{bold.format('X')}</w:p>"
    assert read_docx_body(translate_document("a.docx", content, lambda texts: [answer])) == expected


@pytest.mark.parametrize("tag", ['<w:t xml:space="default">', "<w:t xml:space = 'default'>", "<w:t>"])
@pytest.mark.parametrize("end", ["DOG ", "DOG&#32;", "DOG&#x9;"])
def test_docx_text_that_ends_in_a_space_has_it_preserved(tag: str, end: str) -> None:
    bold = f"<w:r>{BOLD}<w:t>x</w:t></w:r>"
    content = wrap_in_docx(f"<w:p><w:r>{tag}dog&#32;&#x9;</w:t></w:r>{bold}</w:p>")
    made = read_docx_body(translate_document("a.docx", content, lambda texts: [f"{end}<r1>x</r1>"]))
    assert made == f'<w:p><w:r><w:t xml:space="preserve">{end}</w:t></w:r>{bold}</w:p>'


def test_docx_text_translated_to_itself_stays_byte_identical() -> None:
    body = (
        f"<w:p><w:r><w:t>an</w:t></w:r><w:r><w:br/></w:r><w:proofErr/><w:r><w:t>old</w:t></w:r>{make_run('dog')}</w:p>"
    )
    content = wrap_in_docx(f"{body}<w:p>{make_run('x')}</w:p>")
    made = translate_document("a.docx", content, lambda texts: [texts[0], "y"])
    assert read_docx_body(made) == f"{body}<w:p>{make_run('y')}</w:p>"


def translate_into(text: str) -> Callable[[Sequence[str]], list[str]]:
    """Return a translator that replaces the words of each text by one, between its tags."""
    return lambda texts: [re.sub(r"(?<![<\w/])[\w ]+(?![\w/]*>)", text, one, count=1) for one in texts]


def test_docx_paragraphs_in_arabic_run_from_right_to_left_and_back() -> None:
    box = "<w:pict><w:txbxContent><w:p><w:r><w:t>inside</w:t></w:r></w:p></w:txbxContent></w:pict>"
    content = wrap_in_docx(
        '<w:p><w:pPr><w:keepNext/><w:jc w:val="start"/></w:pPr><w:r><w:rPr><w:b/><w:lang w:val="en"/></w:rPr>'
        "<w:t>one</w:t></w:r></w:p>"
        f'<w:p w:rsidR="1"><w:r w:rsidR="2"><w:t>two</w:t></w:r><w:r>{box}</w:r></w:p>'
        "<w:p><w:pPr/><w:r><w:rPr/><w:t>three</w:t></w:r></w:p>"
    )
    arabic = translate_document("a.docx", content, translate_into("بيت"))
    body = read_zip(arabic)["word/document.xml"].decode()
    assert '<w:pPr><w:keepNext/><w:bidi/><w:jc w:val="start"/></w:pPr>' in body
    assert '<w:rPr><w:b/><w:rtl/><w:lang w:val="en"/></w:rPr>' in body
    assert re.findall(r"<w:t>(\w+)", body) == ["بيت"] * 4, "the paragraph in the text box as well"
    assert body.count("<w:pPr>") == body.count("<w:bidi/>") == 4
    assert body.count("<w:r>") + body.count("<w:r ") == body.count("<w:rPr>") == body.count("<w:rtl/>") == 4
    english = translate_document("a.docx", arabic, translate_into("house"))
    assert not re.search("<w:(bidi|rtl)", read_zip(english)["word/document.xml"].decode())
    german = read_zip(translate_document("a.docx", content, translate_into("Haus")))["word/document.xml"]
    assert not re.search(b"<w:(bidi|rtl)", german)


def test_pptx_paragraphs_in_hebrew_run_from_right_to_left_and_back() -> None:
    hebrew = translate_document("a.pptx", make_pptx(), translate_into("בית"))
    english = translate_document("a.pptx", hebrew, translate_into("house"))
    for content, expected in ((hebrew, "1"), (english, "0")):
        title = pptx.Presentation(io.BytesIO(content)).slides[0].shapes.title
        assert title.text_frame.paragraphs[0]._p.pPr.get("rtl") == expected


# PowerPoint


@cache
def make_pptx() -> bytes:
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "The old title"
    paragraph = slide.placeholders[1].text_frame.paragraphs[0]
    for text, bold in [("We see ", False), ("the dog", True), (" now", False)]:
        part = paragraph.add_run()
        part.text, part.font.bold = text, bold or None
    slide.notes_slide.notes_text_frame.text = "my notes"
    size = pptx.util.Inches(1)
    table = slide.shapes.add_table(1, 1, size, size, size, size).table
    table.cell(0, 0).text = "in a\vcell"
    out = io.BytesIO()
    presentation.save(out)
    return out.getvalue()


def test_pptx_translates_only_text_notes_and_tables() -> None:
    content = make_pptx()
    made = translate_document("a.pptx", content, reverse_texts)
    slide = pptx.Presentation(io.BytesIO(made)).slides[0]
    assert slide.shapes.title.text == "title old The"
    runs = slide.placeholders[1].text_frame.paragraphs[0].runs
    assert [(run.text, run.font.bold) for run in runs] == [("now ", None), ("dog the", True), (" see We", None)]
    assert slide.notes_slide.notes_text_frame.text == "notes my"
    (table,) = (shape.table for shape in slide.shapes if shape.has_table)
    assert sorted(table.cell(0, 0).text.split()) == ["a", "cell", "in"]
    assert "\v" in table.cell(0, 0).text
    before, after = read_zip(content), read_zip(made)
    assert {name for name in before if before[name] != after[name]} == {
        "ppt/slides/slide1.xml",
        "ppt/notesSlides/notesSlide1.xml",
    }


# OpenDocument


@cache
def make_odt() -> bytes:
    document = opendocument.OpenDocumentText()
    document.text.addElement(odf_text.H(outlinelevel=1, text="The heading"))
    paragraph = odf_text.P(text="We see ")
    paragraph.addElement(odf_text.Span(stylename="Bold", text="the dog"))
    paragraph.addText(" and")
    paragraph.addElement(odf_text.Tab())
    paragraph.addText("cats")
    note = odf_text.Note(id="n", noteclass="footnote")
    note.addElement(odf_text.NoteCitation(text="1"))
    within = odf_text.NoteBody()
    within.addElement(odf_text.P(text="a note"))
    note.addElement(within)
    paragraph.addElement(note)
    paragraph.addText(" here.")
    document.text.addElement(paragraph)
    out = io.BytesIO()
    document.write(out)
    return out.getvalue()


def test_odt_translates_only_text_and_footnotes() -> None:
    content = make_odt()
    texts = ["The heading", "We see <r1>the dog</r1> and <r2/> cats<r3/> here.", "a note"]
    assert collect_texts("a.odt", content) == texts
    made = translate_document("a.odt", content, reverse_texts)
    document = opendocument.load(io.BytesIO(made))
    (heading,) = document.getElementsByType(odf_text.H)
    assert teletype.extractText(heading) == "heading The"
    (span,) = document.getElementsByType(odf_text.Span)
    assert teletype.extractText(span) == "dog the"
    assert span.getAttribute("stylename") == "Bold"
    (note,) = document.getElementsByType(odf_text.NoteBody)
    assert teletype.extractText(note) == "note a"
    assert len(document.getElementsByType(odf_text.Tab)) == 1
    before, after = read_zip(content), read_zip(made)
    assert {name for name in before if before[name] != after[name]} == {"content.xml"}


ODF_XMLNS = (
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" xmlns:office="o" xmlns:style="s" xmlns:draw="d"'
)


def make_odp() -> bytes:
    return make_zip(
        {
            "mimetype": "application/vnd.oasis.opendocument.presentation",
            "content.xml": f'<?xml version="1.0" encoding="UTF-8"?>\n<office:document-content {ODF_XMLNS}><draw:page>'
            "<draw:frame><draw:text-box><text:p>An <text:span>old</text:span><text:line-break/> slide</text:p>"
            "</draw:text-box></draw:frame></draw:page></office:document-content>",
            "styles.xml": f"<office:document-styles {ODF_XMLNS}><style:header><text:p>My header</text:p></style:header>"
            "</office:document-styles>",
            "Pictures/a.png": b"\x89PNG\0",
            "META-INF/manifest.xml": "<manifest/>",
        }
    )


def test_odp_translates_slides_and_headers() -> None:
    made = read_zip(translate_document("a.odp", make_odp(), uppercase_texts))
    before = read_zip(make_odp())
    assert made["content.xml"] == before["content.xml"].replace(b"An ", b"AN ").replace(b"old", b"OLD").replace(
        b" slide<", b" SLIDE<"
    )
    assert made["styles.xml"] == before["styles.xml"].replace(b"My header", b"MY HEADER")
    assert made["Pictures/a.png"] == before["Pictures/a.png"]


def test_odt_tracked_deletions_are_not_translated() -> None:
    content = make_zip(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"<office:text {ODF_XMLNS}><text:tracked-changes><text:p>gone</text:p>"
            "</text:tracked-changes><text:p>here</text:p></office:text>",
        }
    )
    assert collect_texts("a.odt", content) == ["here"]


# EPUB

CHAPTER = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>One</title><script src="x"/></head>
<body><p id='a'><a id="p1"/>An <i>old</i>&nbsp;dog<br/> sleeps.</p><![CDATA[a < b]]><pre>x y</pre></body></html>"""
NCX = """<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><docAuthor><text>Jane Doe</text></docAuthor><navMap>
<navPoint id="n"><navLabel><text>One</text></navLabel><content src="one.xhtml"/></navPoint></navMap></ncx>"""


def make_epub() -> bytes:
    return make_zip(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": "<container/>",
            "OEBPS/one.xhtml": CHAPTER,
            "OEBPS/toc.ncx": NCX,
            "OEBPS/style.css": "p { color: red }",
        }
    )


def test_epub_translates_only_chapters_and_table_of_contents() -> None:
    content = make_epub()
    made = read_zip(translate_document("a.epub", content, uppercase_texts))
    page = CHAPTER.replace("<title>One", "<title>ONE").replace("An <i>old</i>&nbsp;dog", "AN <i>OLD</i>&nbsp;DOG")
    page = page.replace(" sleeps.", " SLEEPS.").replace("<![CDATA[a < b]]>", "A &lt; B")
    assert made["OEBPS/one.xhtml"].decode() == page
    assert made["OEBPS/toc.ncx"].decode() == NCX.replace("<text>One", "<text>ONE")
    before = read_zip(content)
    assert {name for name in before if before[name] != made[name]} == {"OEBPS/one.xhtml", "OEBPS/toc.ncx"}


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.epub", make_epub()), ("a.odt", make_odt()), ("a.odp", make_odp())],
    ids=["epub", "odt", "odp"],
)
def test_mimetype_member_stays_first_and_uncompressed(name: str, content: bytes) -> None:
    made = translate_document(name, content, uppercase_texts)
    with zipfile.ZipFile(io.BytesIO(made)) as file:
        first = file.infolist()[0]
    assert (first.filename, first.compress_type, first.header_offset, first.extra) == ("mimetype", 0, 0, b"")
    assert made[30:38] == b"mimetype"
    assert made[38 : 38 + 12] == b"application/"


# Invalid and unsafe files

ENTITIES = '<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY x "y"><!ENTITY z "&x;&x;">]>\n'
EXTERNAL_ENTITY = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
BILLION_LAUGHS = (
    "<!DOCTYPE a [" + "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9)) + '<!ENTITY l0 "ha">]>'
)


def rename_member(content: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert content.count(old) == 2
    return content.replace(old, new)


def set_password_flag(content: bytes) -> bytes:
    """Mark the first member as encrypted."""
    made = bytearray(content)
    made[6] |= 1
    made[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(made)


def make_docx_with_member(name: str) -> bytes:
    return make_zip({CONTENT_TYPES: "<Types/>", "word/document.xml": "<a/>", name: "x"})


def make_docx_with_repeated_member() -> bytes:
    return rename_member(make_docx_with_member("word/documents.xm"), b"word/documents.xm", b"word/document.xml")


def make_docx_with_prologue(prologue: str) -> bytes:
    return make_zip({CONTENT_TYPES: "<Types/>", "word/document.xml": f"{prologue}<a {W_XMLNS}>&x;</a>"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"%PDF", "a.pdf is not in a supported document format: .txt"),
        ("a", b"", "a is not in a supported document format"),
        ("a\nb.txt", b"\xff", "a b.txt is not utf-8 text: byte 0"),
        ("a.txt", b"ab\0", "has NUL characters"),
        ("a.txt", b"caf\xe9", "is not utf-8 text: byte 3"),
        ("a.txt", "x".encode("utf-16"), "is not utf-8 text"),
        ("a.html", b"\x89PNG\r\n\x1a\n\0", "is not utf-8 text"),
        ("a.html", b'<meta charset="utf-7">x', "has the unsupported encoding 'utf-7'"),
        ("a.html", b'<meta charset="rot13">x', "has the unsupported encoding 'rot13'"),
        ("a.html", b'<meta charset="no such">x', "has the unsupported encoding 'no'"),
        ("a.srt", b"Dear Sir,", "has no subtitle times"),
        ("a.vtt", b"1\n00:00:01,000 --> 00:00:02,000\nx", "does not begin with WEBVTT"),
        ("a.xliff", b"<tmx/>", "its first element is not <xliff>"),
        ("a.xliff", b"", "is damaged or cut off"),
        ("a.xliff", XLIFF.encode()[:-20], "is damaged or cut off"),
        ("a.xliff", f"{ENTITIES}<xliff>&z;</xliff>".encode(), "declares XML entities, which are not supported"),
        ("a.xhtml", f"{BILLION_LAUGHS}<html>&l9;</html>".encode(), "declares XML entities, which are not supported"),
        (
            "a.xhtml",
            b"<html>" + b"<div>" * 300 + b"</div>" * 300 + b"</html>",
            "has elements nested more than 256 deep",
        ),
        ("a.xhtml", b"<html><p>x</html>", "is damaged or cut off; its XML cannot be read"),
        ("a.xhtml", b"<html>&nbsp;</html>", "is damaged or cut off; its XML cannot be read"),
        ("a.docx", b"", "it is not a zip file"),
        ("a.docx", b"%PDF-1.7", "it is not a zip file"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "it may be an older format, or protected by a password"),
        ("a.docx", make_docx()[:-30], "is damaged or cut off, it cannot be unpacked"),
        ("a.docx", make_docx()[:2000], "is damaged or cut off, it cannot be unpacked"),
        ("a.docx", make_pptx(), "it has no word/document.xml"),
        ("a.docx", make_zip({"word/document.xml": "<a/>"}), "it has no [Content_Types].xml"),
        ("a.pptx", make_docx(), "it has no ppt/presentation.xml"),
        ("a.odt", make_odp(), "its type is 'application/vnd.oasis.opendocument.presentation'"),
        ("a.odp", make_docx(), "its type is 'nothing'"),
        ("a.epub", make_odt(), "its type is not 'application/epub+zip'"),
        ("a.docx", set_password_flag(make_docx()), "is protected by a password"),
        ("a.docx", make_docx_with_member("../evil.txt"), "contains '../evil.txt', which is not a valid file name"),
        ("a.docx", make_docx_with_member("word/../../evil.txt"), "which is not a valid file name"),
        ("a.docx", make_docx_with_member("/etc/evil.txt"), "which is not a valid file name"),
        (
            "a.docx",
            rename_member(make_docx_with_member("word+evil"), b"word+evil", b"word\\evil"),
            "which is not a valid file name",
        ),
        ("a.docx", make_docx_with_member("C:evil.txt"), "which is not a valid file name"),
        ("a.docx", make_docx_with_repeated_member(), "contains 'word/document.xml' twice"),
        ("a.docx", make_docx_with_prologue(ENTITIES), "contains word/document.xml, which declares XML entities"),
        ("a.docx", make_docx_with_prologue(EXTERNAL_ENTITY), "contains word/document.xml, which declares XML entities"),
        ("a.docx", make_docx_with_prologue(BILLION_LAUGHS), "contains word/document.xml, which declares XML entities"),
        ("a.docx", make_docx_with_prologue("<!-- x -->\n<?y z?>" + EXTERNAL_ENTITY), "which declares XML entities"),
        (
            "a.docx",
            make_docx_with_prologue('<!DOCTYPE a SYSTEM "file:///dev/zero" [ ]>'),
            "which declares XML entities",
        ),
        ("a.docx", make_docx_with_prologue("\0"), "has NUL characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_invalid_or_unsafe_document_is_refused_with_a_message(name: str, content: bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(message)) as caught:
        translate_document(name, content, fail_if_called)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_bzip2_and_lzma_compressed_documents_are_refused(method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.writestr("mimetype", "application/epub+zip")
    with pytest.raises(DocumentError, match="has an unsupported compression"):
        translate_document("a.epub", out.getvalue(), fail_if_called)


def test_external_dtd_is_not_fetched() -> None:
    content = b'<!DOCTYPE html SYSTEM "http://127.0.0.1:9/x.dtd"><html><p>one &x; two</p></html>'
    assert translate_document("a.xhtml", content, uppercase_texts) == content.replace(b"one", b"ONE").replace(
        b"two", b"TWO"
    )


def test_archive_embedded_in_a_document_is_not_unpacked() -> None:
    inner = make_zip({"../evil": b"\0" * (MIN_UNPACKED_LIMIT + 1)})
    parts = {**read_zip(wrap_in_docx(f"<w:p>{make_run('x')}</w:p>")), "word/embeddings/a.zip": inner}
    made = read_zip(translate_document("a.docx", make_zip(parts, stored=["word/embeddings/a.zip"]), uppercase_texts))
    assert made["word/embeddings/a.zip"] == inner


def test_subtitles_with_tags_before_a_note_are_translated() -> None:
    content = CUE + "one\n<ruby><.::>♪ two\n".encode()
    assert collect_texts("a.srt", content) == ["one", "two"]


# Zip bombs


class UnpackedBytes:
    """Counts the bytes that zip files are unpacked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        plain = zipfile.ZipExtFile.read

        def read(member: Any, n: int | None = -1) -> bytes:
            data = plain(member, n)
            self.count += len(data)
            return data

        monkeypatch.setattr(zipfile.ZipExtFile, "read", read)


def make_zip_bomb(files: int = 10) -> bytes:
    """Return an EPUB with members of 10 MB of zeros, a few kilobytes each when compressed."""
    zeros = b"\0" * 10_000_000
    return make_zip({"mimetype": "application/epub+zip", **{f"{number}.bin": zeros for number in range(files)}})


def test_zip_bomb_is_refused_at_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    content = make_zip_bomb()
    assert len(content) < 200_000
    unpacked = UnpackedBytes(monkeypatch)
    with pytest.raises(DocumentError, match="unpacks to more than 1,000,000 bytes, which is more than allowed"):
        translate_document("a.epub", content, fail_if_called, DocumentLimits(total_bytes=1_000_000))
    assert unpacked.count <= 1_000_001
    with pytest.raises(DocumentError, match="unpacks to more than"):
        translate_document("a.epub", content, fail_if_called)
    assert unpacked.count <= 1_000_001 + max(MIN_UNPACKED_LIMIT, 100 * len(content)) + 1


def test_zip_bomb_with_false_sizes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(make_zip_bomb(2))
    size = struct.pack("<I", 10_000_000)
    while size in content:
        offset = content.index(size)
        content[offset : offset + 4] = struct.pack("<I", 10)
    unpacked = UnpackedBytes(monkeypatch)
    with pytest.raises(DocumentError, match="damaged"):
        translate_document("a.epub", bytes(content), fail_if_called)
    assert unpacked.count < 100


def test_zip_with_members_that_share_their_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_zip({"a0000.bin": b"\0" * 10_000_000})
    start, end = one.index(b"PK\x01\x02"), one.index(b"PK\x05\x06")
    directory = one[start:end] * 1000  # a thousand entries for one member of 10 MB
    tail = one[end : end + 8] + struct.pack("<HHII", 1000, 1000, len(directory), start) + b"\0\0"
    unpacked = UnpackedBytes(monkeypatch)
    with pytest.raises(DocumentError, match="twice"):
        translate_document("a.epub", one[:start] + directory + tail, fail_if_called)
    assert unpacked.count == 0


def test_zip_with_too_many_members_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    content = make_zip({f"{number}": b"" for number in range(101)})
    unpacked = UnpackedBytes(monkeypatch)
    with pytest.raises(DocumentError, match="contains more than 100 files"):
        translate_document("a.epub", content, fail_if_called, DocumentLimits(entries=100))
    assert unpacked.count == 0


def test_files_and_members_over_the_size_limit_are_refused() -> None:
    with pytest.raises(DocumentError, match=r"a\.txt has 11 bytes; the maximum is 10"):
        translate_document("a.txt", b"x" * 11, fail_if_called, DocumentLimits(text_bytes=10))
    with pytest.raises(DocumentError, match=r"contains OEBPS/one\.xhtml, which has more than 10 bytes"):
        translate_document("a.epub", make_epub(), fail_if_called, DocumentLimits(text_bytes=10))


def test_small_docx_with_a_million_empty_paragraphs_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = wrap_in_docx("<w:p/>" * 1_300_000)
    assert len(content) < 20_000
    monkeypatch.setattr(etree, "iterparse", fail_if_called)
    with pytest.raises(DocumentError, match=r"unpacks to more than 2,097,152 bytes"):
        translate_document("a.docx", content, fail_if_called)
    monkeypatch.setattr(base, "MIN_UNPACKED_LIMIT", 1 << 30)
    with pytest.raises(DocumentError, match=r"a\.docx has 1,300,005 tags or lines; the maximum is 1,000,000"):
        translate_document("a.docx", content, fail_if_called)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.docx", wrap_in_docx("<w:p><w:r><w:t>a</w:t></w:r></w:p>")),
        ("a.html", b"<p>a</p>" * 3),
        ("a.xliff", b"<xliff><a/><a/><a/></xliff>"),
        ("a.txt", b"a\n" * 5),
        ("a.srt", CUE + b"a\n" * 4),
        ("a.md", b"*a* _b_ [c]"),
        ("a.po", b'msgid "<b>a"\n' * 3),
        ("a.epub", make_epub()),
    ],
)
def test_document_with_too_many_tags_or_lines_is_refused(name: str, content: bytes) -> None:
    with pytest.raises(DocumentError, match=rf"{name} has \d+ tags or lines; the maximum is 4"):
        translate_document(name, content, fail_if_called, DocumentLimits(tags=4))


def test_tags_of_all_members_count_together() -> None:
    run = "<w:p><w:r><w:t>a</w:t></w:r></w:p>"
    parts = {f"word/header{number}.xml": f"<w:hdr {W_XMLNS}>{run}</w:hdr>" for number in range(10)}
    content = make_zip({CONTENT_TYPES: "<Types/>", "word/document.xml": f"<w:document {W_XMLNS}/>"} | parts)
    assert len(collect_texts("a.docx", content)) == 10
    with pytest.raises(DocumentError, match="has 81 tags or lines; the maximum is 80"):
        translate_document("a.docx", content, fail_if_called, DocumentLimits(tags=80))


def test_element_with_too_many_namespace_prefixes_is_refused() -> None:
    prefixes = "".join(f" xmlns:a{number}='b'" for number in range(500))
    with pytest.raises(DocumentError, match="has 501 namespace prefixes; maximum 500"):
        translate_document("a.docx", wrap_in_docx(f"<w:p{prefixes}/>"), fail_if_called)


@pytest.mark.slow
def test_docx_of_300_pages_is_translated_within_the_limits_of_the_service() -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(3000)]
    document = docx.Document()
    for _ in range(300 * 6):  # paragraphs of 80 words, one in three with a word in bold
        paragraph = document.add_paragraph(" ".join(rng.choices(words, k=40)))
        paragraph.add_run(f" {rng.choice(words)} ").bold = rng.random() < 0.3
        paragraph.add_run(" ".join(rng.choices(words, k=39)))
    table = document.add_table(300, 3)
    for row in table.rows:
        row.cells[0].text = "the same"
    file = io.BytesIO()
    document.save(file)
    assert (
        len(
            collect_texts(
                "a.docx", file.getvalue(), DocumentLimits(total_bytes=100_000_000, text_bytes=20_000_000, tags=MAX_TAGS)
            )
        )
        == 2100
    )


PATHOLOGICAL: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "html: unfinished tags": ("a.html", lambda n: b"<a" * 4 * n),
    "html: tags inside attributes": ("a.html", lambda n: b'<a ="<a" ' * n),
    "html: deep nesting": ("a.html", lambda n: b"<b>" * 2 * n + b"x" + b"</b>" * 2 * n),
    "html: deep nesting with wrong end tags": ("a.html", lambda n: b"<b>" * 2 * n + b"x" + b"</i>" * 2 * n),
    "html: tags without end tags": ("a.html", lambda n: b"<b>x <i>" * n),
    "html: line breaks": ("a.html", lambda n: b"x<br> " * n),
    "html: unfinished comments": ("a.html", lambda n: b"<!--" * 2 * n),
    "html: unfinished titles": ("a.html", lambda n: b"<title>" * n),
    "html: unfinished code elements": ("a.html", lambda n: b"<code>" * n),
    "html: ampersands": ("a.html", lambda n: b"&" * 4 * n + b"x"),
    "md: emphasis": ("a.md", lambda n: b"**a _b *c* " * n),
    "md: runs without end": ("a.md", lambda n: b"**a " * n + b"b_ " * n),
    "md: brackets": ("a.md", lambda n: b"[" * 4 * n + b"x" + b"]" * 4 * n),
    "md: quotes": ("a.md", lambda n: b"> " * 2 * n + b"x"),
    "md: unfinished comments": ("a.md", lambda n: b"x <!-- " * n),
    "srt: a cue of many lines": ("a.srt", lambda n: CUE + b"x <i>\n" * 3 * n),
    "srt: a line of many words": ("a.srt", lambda n: CUE + b"x " * 2 * n),
    "srt: voice tags": ("a.srt", lambda n: CUE + b"<v A>" * 2 * n),
    "srt: speaker dashes": ("a.srt", lambda n: CUE + b"- JOHN" * 2 * n),
    "srt: end tags": ("a.srt", lambda n: CUE + b"A" + b"</b>" * 2 * n),
    "srt: speaker names": ("a.srt", lambda n: CUE + b"X: " * 2 * n),
    "docx: tabs": (
        "a.docx",
        lambda n: wrap_in_docx(f"<w:p>{'<w:r><w:tab/></w:r> ' * 2 * n}{make_run('x')}</w:p>"),
    ),
    "docx: nested fields": (
        "a.docx",
        lambda n: wrap_in_docx(f"<w:p>{FIELD.format('begin') * n}{make_run('x')}{FIELD.format('end') * n}</w:p>"),
    ),
}


@pytest.mark.parametrize("case", PATHOLOGICAL)
def test_pathological_document_keeps_its_text(case: str) -> None:
    name, build = PATHOLOGICAL[case]
    content = build(sys.getrecursionlimit())
    made = translate_document(name, content, copy_texts)
    assert collect_texts(name, made) == collect_texts(name, content)
    if name == "a.srt":
        assert made.split() == content.split()


@pytest.mark.parametrize("case", PATHOLOGICAL)
def test_calls_grow_linearly_with_a_pathological_document(case: str) -> None:
    """Count the calls of Python and C functions; the time within one call of a regular expression is not seen."""
    name, build = PATHOLOGICAL[case]
    translate_document(name, build(1), copy_texts)  # compiles regular expressions
    events: list[str] = []
    counts = []
    for content in (build(200), build(400)):
        events.clear()
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            translate_document(name, content, copy_texts)
        finally:
            sys.setprofile(None)
        counts.append(len(events))
    assert counts[1] <= 2.1 * counts[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.docx", wrap_in_docx(f"<w:p>{'<w:hyperlink>' * 200}{make_run('x')}{'</w:hyperlink>' * 200}</w:p>")),
        ("a.xhtml", b"<p>" + b"<b>" * 250 + b"x" + b"</b>" * 250 + b"</p>"),
    ],
    ids=["docx", "xhtml"],
)
def test_deeply_nested_xml_is_translated(name: str, content: bytes) -> None:
    made = translate_document(name, content, copy_texts)
    assert collect_texts(name, made) == collect_texts(name, content)


# Fuzzing

EXAMPLES: dict[str, bytes] = {
    ".txt": b"One & two\r\n three\n",
    ".html": PAGE.encode(),
    ".htm": b"<p>see <b>the old</b> dog <i title='x'>now</i></p>" * 3,
    ".xhtml": CHAPTER.encode(),
    ".srt": SUBTITLES.encode(),
    ".vtt": CAPTIONS.encode(),
    ".xliff": XLIFF.encode(),
    ".xlf": XLIFF.replace("UTF-8", "UTF-16").encode("utf-16"),
    ".sdlxliff": SDLXLIFF.format(SDL_TARGET.format("", "Zwei."), "", "").encode(),
    ".mqxliff": XLIFF.replace('<trans-unit id="2">', '<trans-unit id="2" mq="x">').encode(),
    ".po": PO.encode(),
    ".md": MARKDOWN.encode(),
    ".markdown": b"# The old dog\n",
    ".mdown": b"The *old* dog\n",
    ".mkd": b"- The old dog\n",
    ".mkdn": b"> The old dog\n",
    ".rmd": R_MARKDOWN.encode(),
    ".qmd": b"The old dog [@x]\n",
    ".docx": make_docx(),
    ".pptx": make_pptx(),
    ".odt": make_odt(),
    ".odp": make_odp(),
    ".epub": make_epub(),
}
MARKUP = [b"<", b">", b"&", b"</w:p>", b"<w:p>", b"<r1>", b"</r1>", b"<!--", b"]]>", b"<![CDATA[", b'"', b"&#0;", b"\0"]


@pytest.mark.parametrize("ending", EXAMPLES)
@pytest.mark.parametrize("answer", ["", " &#32;<r1></r1>"], ids=["empty", "blank"])
def test_text_with_an_empty_translation_stays_as_it_is_and_is_reported(ending: str, answer: str) -> None:
    content = EXAMPLES[ending]
    warnings: list[str] = []
    texts = collect_texts(f"a{ending}", content)
    made = translate_document(f"a{ending}", content, lambda texts: [answer] * len(texts), warn=warnings.append)
    assert (
        (read_zip(made) == read_zip(content)) if ending in DOCUMENT_EXTENSIONS[-5:] else made.split() == content.split()
    )
    assert len(warnings) == len(texts) if len(texts) <= 10 else warnings[10].endswith("texts have no translation")
    assert all(warning.startswith(f"a{ending}: ") for warning in warnings)
    assert f"no translation for '{re.split(r'[ <]', texts[0])[0]}" in warnings[0]


def test_one_empty_translation_does_not_change_the_others() -> None:
    content = b"<p title='old dog'>one <b>two</b></p><p>three</p>"
    warnings: list[str] = []
    made = translate_document("a.html", content, lambda texts: ["", "<r1></r1>", "drei"], warn=warnings.append)
    assert made == content.replace(b"three", b"drei")
    assert warnings == [f"a.html: no translation for {text!r}, which stays as it is" for text in ("old dog", "one two")]


def mutations(content: bytes) -> st.SearchStrategy[bytes]:
    """Copies of the file with a few ranges deleted, doubled or overwritten, or truncated."""
    offset = st.integers(0, len(content))
    new = st.one_of(st.binary(max_size=4), st.sampled_from(MARKUP))
    edit = st.tuples(offset, st.integers(0, 40), st.booleans(), new)

    def apply(edits: list[tuple[int, int, bool, bytes]], end: int | None) -> bytes:
        out = content
        for start, length, is_doubled, replacement in edits:
            middle = out[start : start + length] * 2 if is_doubled else replacement
            out = out[:start] + middle + out[start + length :]
        return out[:end]

    return st.builds(apply, st.lists(edit, max_size=4), st.one_of(st.none(), offset))


def is_well_formed(content: bytes) -> bool:
    """Return True if an independent parser accepts the content as XML."""
    try:
        expat.ParserCreate().Parse(content, True)
    except (expat.ExpatError, LookupError, ValueError):
        return False
    return True


def check_translated_or_refused(name: str, content: bytes) -> None:
    """Translate a document; a result has all members, and those that were well-formed XML still are."""
    try:
        made = translate_document(name, content, reverse_texts)
    except DocumentError:
        return
    if zipfile.is_zipfile(io.BytesIO(content)) and name.endswith(tuple(DOCUMENT_EXTENSIONS[-5:])):
        before, after = read_zip(content), read_zip(made)
        assert list(before) == list(after)
        assert all(is_well_formed(after[name]) for name in before if is_well_formed(before[name]))
    elif name.endswith((".xhtml", ".xliff", ".xlf")):
        assert is_well_formed(made) or not is_well_formed(content)


def test_every_document_format_has_an_example() -> None:
    assert set(EXAMPLES) == set(DOCUMENT_EXTENSIONS)
    for ending, content in EXAMPLES.items():
        assert collect_texts(f"a{ending}", content)


# The slow ones share their parser with another format.
@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(ending, marks=[pytest.mark.slow] * (ending in (".htm", ".xlf", ".mkd", ".mkdn", ".pptx", ".odp")))
        for ending in EXAMPLES
    ],
)
@given(data=st.data())
def test_mutated_document_is_translated_or_refused(ending: str, data: st.DataObject) -> None:
    check_translated_or_refused(f"a{ending}", data.draw(mutations(EXAMPLES[ending])))


@pytest.mark.parametrize(
    ("ending", "part"),
    [
        (".docx", "word/document.xml"),
        pytest.param(".pptx", "ppt/slides/slide1.xml", marks=pytest.mark.slow),
        (".odt", "content.xml"),
        pytest.param(".odp", "styles.xml", marks=pytest.mark.slow),
        (".epub", "OEBPS/one.xhtml"),
        (".epub", "mimetype"),
    ],
)
@given(data=st.data())
def test_mutated_archive_member_is_translated_or_refused(ending: str, part: str, data: st.DataObject) -> None:
    parts = read_zip(EXAMPLES[ending])
    parts[part] = data.draw(mutations(parts[part]))
    check_translated_or_refused(f"a{ending}", make_zip(parts))


@pytest.mark.parametrize("ending", DOCUMENT_EXTENSIONS)
@given(content=st.binary(max_size=300))
def test_random_bytes_are_translated_or_refused(ending: str, content: bytes) -> None:
    check_translated_or_refused(f"a{ending}", content)
    check_translated_or_refused(f"a{ending}", b"PK\x03\x04" + content)


def inline_xhtml(depth: int) -> st.SearchStrategy[str]:
    """Inline XHTML: words, empty elements and nested elements."""
    word = st.sampled_from(
        ["dog ", "old ", "x", "&amp; ", "&#233;t", " ", "\n  ", "<br/>", "<!-- c -->", "<code>k</code>"]
    )
    if not depth:
        return word
    name = st.sampled_from(["b", "i", "span", "div"])
    around = st.builds(lambda tag, inside: f"<{tag}>{inside}</{tag}>", name, inline_xhtml(depth - 1))
    return st.lists(st.one_of(word, around), max_size=6).map("".join)


class ParsedPage(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(inline_xhtml(3))
def test_any_xhtml_keeps_its_tags_and_letters(inside: str) -> None:
    content = f"<html><p>{inside}</p></html>"
    made = translate_document("a.xhtml", content.encode(), reverse_texts).decode()
    etree.fromstring(made)
    before, after = ParsedPage(content), ParsedPage(made)
    assert sorted(before.tags) == sorted(after.tags)
    assert sorted("".join(before.text.split())) == sorted("".join(after.text.split()))
    same = translate_document("a.xhtml", content.encode(), copy_texts).decode()
    assert "".join(same.split()) == "".join(content.split())


HTML_TEXTS = ["dog", "an old dog ", " a & b ", "x < 3 ", "1 > 0", "R&D", "fish &amp; chips", "\r\n", "a\n  b", "&nbsp;"]
HTML_TEXTS += ["caf&eacute; ", "a\tb  c", "&#60;x", "AT&T;", "d. "]
HTML_MARKUP = [
    *(
        "<p>",
        "</p>",
        "<P CLASS='x y'>",
        "<br>",
        "<br />",
        "<BR\n>",
        "<b>",
        "</b>",
        "<i  id=a>",
        "</i >",
        "<hr>",
        "<li>",
    ),
    *("<a href=x?a=1&b=2 >", "<a href='a\"b'>", "</a>", "<img src = i.png>", '<input value="a > b">', "<td", "<wbr>"),
    *("<!-- a -- b > c -->", "<!-->", "<![CDATA[ a < b ]]>", "<?php x ?>", "<script>if (a<b) '</p>'</script>"),
    *("<style>p > b {}</style>", "<pre> x\r\n y </pre>", "<code>a&b</code>", "<!doctype html>", "<", "</", "<>"),
    *("<textarea>a & b", "</textarea>", "<title>", "</title>", "\x01", "&copy 1", "&#0;", "<b translate=no>x</b>"),
    *('<p title="a & b" title=c>', "<img alt='say \"x\"' title = y>", "<p placeholder=&amp;b>", "<p title='a\r\nb'>"),
]


@given(st.lists(st.sampled_from(HTML_TEXTS + HTML_MARKUP), max_size=12).map("".join))
def test_html_translated_to_itself_stays_byte_identical(content: str) -> None:
    assert translate_document("a.html", content.encode(), copy_texts) == content.encode()


SIMPLE_MARKUP = [markup for markup in HTML_MARKUP[:20] if markup != "<td"] + ["<!-- a -- b > c -->", "<code>a&b</code>"]


@given(st.lists(st.tuples(st.sampled_from(SIMPLE_MARKUP), st.sampled_from(HTML_TEXTS)), max_size=8))
def test_html_changes_only_in_its_text(parts: list[tuple[str, str]]) -> None:
    content = "".join(markup + text for markup, text in parts).encode()
    expected = "".join(markup + uppercase_texts([text])[0] for markup, text in parts)
    assert translate_document("a.html", content, uppercase_texts).decode() == expected


DOCX_RUNS = st.builds(
    lambda text, bold, tab: f"<w:r>{BOLD if bold else ''}<w:t>{text}</w:t>{tab}</w:r>",
    st.sampled_from(["old ", "dog", " a &amp; b", "", " "]),
    st.booleans(),
    st.sampled_from(
        ["", "<w:tab/>", "<w:br/>", '<w:fldChar w:fldCharType="begin"/>', '<w:fldChar w:fldCharType="end"/>']
    ),
)
BOOKMARKS = st.sampled_from([f'<w:bookmark{side} w:id="{number}"/>' for side in ("Start", "End") for number in (0, 1)])


def docx_paragraphs(depth: int) -> st.SearchStrategy[str]:
    """Content of a paragraph: runs, bookmarks and nested hyperlinks."""
    choices = [DOCX_RUNS, BOOKMARKS]
    if depth:
        choices.append(docx_paragraphs(depth - 1).map(lambda inside: f"<w:hyperlink>{inside}</w:hyperlink>"))
    return st.lists(st.one_of(choices), max_size=5).map("".join)


@given(docx_paragraphs(2))
def test_any_docx_paragraph_keeps_its_elements_and_letters(inside: str) -> None:
    content = wrap_in_docx(f"<w:p>{inside}</w:p>")
    made = read_docx_body(translate_document("a.docx", content, reverse_texts))
    kinds = r"<w:(?:tab|br|fldChar|bookmark|hyperlink)[^>]*>"
    assert sorted(re.findall(kinds, made)) == sorted(re.findall(kinds, inside))
    letters = [sorted("".join(re.sub(r"<[^>]*>", "", text).split())) for text in (made, inside)]
    assert letters[0] == letters[1]
    assert not re.search(r"<w:r>(?:(?!</w:r>).)*<w:r>", made)
