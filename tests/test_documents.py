"""Documents: their text is translated, formatting goes with its words, and everything else stays as it was."""

from __future__ import annotations

import io
import re
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
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

from regard.documents import ENDINGS, DocumentError, Limits, readable, translated
from regard.documents.archive import LEAST
from regard.errors import UserError
from regard.translate import tags

PIECES = re.compile(r"(<[^<>]*>|&#?\w+;)")
CONTENT_TYPES = "[Content_Types].xml"
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def louder(texts: Sequence[str]) -> list[str]:
    """Capital letters, with tags and entities left alone."""
    return ["".join(part if part[:1] in "<&" else part.upper() for part in PIECES.split(text)) for text in texts]


def turned(texts: Sequence[str]) -> list[str]:
    """The words from last to first, with the tags carried along as a model's translations have them."""
    return [reversed_words(text) for text in texts]


def reversed_words(text: str) -> str:
    marked = tags.parse(text)
    split = [piece.plain.split() for piece in marked.pieces]
    links = [[(place, len(words) - 1 - place) for place in range(len(words))] for words in split]
    return tags.restore(marked, [" ".join(reversed(words)) for words in split], links)


def unchanged(texts: Sequence[str]) -> list[str]:
    return list(texts)


def never(texts: Sequence[str]) -> list[str]:
    raise AssertionError(f"asked to translate {texts}")


class Heard:
    """A translator that remembers what it was asked."""

    def __init__(self, translate: Callable[[Sequence[str]], list[str]]) -> None:
        self.translate = translate
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[str]:
        self.texts += texts
        return self.translate(texts)


def asked(name: str, content: bytes) -> list[str]:
    """What a translator is asked for a document."""
    heard = Heard(unchanged)
    translated(name, content, heard)
    return heard.texts


def zipped(parts: Mapping[str, str | bytes], stored: Sequence[str] = ("mimetype",)) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in parts.items():
            file.writestr(name, data, zipfile.ZIP_STORED if name in stored else None)
    return out.getvalue()


def parts_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        assert file.testzip() is None
        return {info.filename: file.read(info) for info in file.infolist()}


# Text files


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_keep_their_ends_and_their_white_space(mark: bytes) -> None:
    content = mark + "One & two\r\n\n\t three < four \rfünf\n 1.2 - 3\nlast".encode()
    expected = mark + "ONE & TWO\r\n\n\t THREE < FOUR \rFÜNF\n 1.2 - 3\nLAST".encode()
    assert translated("a.txt", content, louder) == expected
    assert asked("A.TXT", content) == ["One &amp; two", "three &lt; four", "fünf", "last"]


def test_what_looks_like_markup_in_plain_text_is_text() -> None:
    content = b"if a<b and &amp; <b>x</b> &lt;"
    assert asked("a.txt", content) == ["if a&lt;b and &amp;amp; &lt;b&gt;x&lt;/b&gt; &amp;lt;"]
    assert translated("a.txt", content, unchanged) == content


def test_a_translation_with_a_line_break_stays_a_line() -> None:
    assert translated("a.txt", b"one\ntwo\n", lambda texts: [f"{text}\n!" for text in texts]) == b"one !\ntwo !\n"


@pytest.mark.parametrize("ending", [".txt", ".html", ".htm", ".srt", ".vtt"])
@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", b" \r\n "])
def test_files_without_text_come_back_and_nobody_is_asked(ending: str, content: bytes) -> None:
    assert translated(f"a{ending}", content, never) == content


SUBTITLES = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500\r\nThe <i>old dog</i>\r\nsleeps here & there.\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000 X1:1\r\n- Who is it?\r\n- {\\an8}The cat.\r\n\r\n\r\n"
    "3\r\n00:00:05,000 --> 00:00:06,000\r\n…\r\n"
)


def test_a_cue_is_one_text_and_keeps_its_number_its_times_and_its_tags() -> None:
    assert asked("a.srt", SUBTITLES.encode()) == [
        "The <r1>old dog</r1> sleeps here &amp; there.",
        "Who is it?",
        "The cat.",
    ]
    made = translated("a.srt", SUBTITLES.encode(), turned).decode()
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
def test_dashes_of_speakers_and_notes_of_music_are_not_sent(lines: str, sent: list[str]) -> None:
    content = f"1\n00:00:01,000 --> 00:00:02,000\n{lines}\n"
    found: list[str] = []

    def translate(texts: Sequence[str]) -> list[str]:
        found.extend(texts)
        return [text.upper() for text in texts]

    kept = lines.upper().replace("I>", "i>").replace("\\AN8", "\\an8")
    assert translated("a.srt", content.encode(), translate).decode() == content.replace(lines, kept)
    assert found == sent


def test_a_dash_is_not_left_alone_on_a_line() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\n- Is it\nno?\n"
    assert translated("a.srt", content, lambda texts: ["Nein?"]) == content.replace(b"Is it\nno?", b"Nein?")


def test_a_cue_whose_translation_is_a_word_has_one_line() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\nan old\ndog\n\n2\n00:00:02,000 --> 00:00:03,000\nx\n"
    made = translated("a.srt", content, lambda texts: ["Hund", "y"])
    assert made == b"1\n00:00:01,000 --> 00:00:02,000\nHund\n\n2\n00:00:02,000 --> 00:00:03,000\ny\n"


def test_cues_without_empty_lines_between_them_are_cues() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\none\n2\n00:00:02,000 --> 00:00:03,000\ntwo"
    assert asked("a.srt", content) == ["one", "two"]


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


def test_captions_are_markup_and_keep_voices_notes_styles_and_settings() -> None:
    assert asked("a.vtt", CAPTIONS.encode()) == [
        "The <r1>old dog</r1> sleeps here &amp; <r2/>there.",
        "Who is it?",
        "The cat &gt; all.",
        "Yes.",
    ]
    assert translated("a.vtt", CAPTIONS.encode(), unchanged).decode().split() == CAPTIONS.split()
    made = translated("a.vtt", CAPTIONS.encode(), lambda texts: ["x & <y>", "b", "c", "d"]).decode()
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
def test_who_speaks_is_not_translated(lines: str, sent: list[str]) -> None:
    content = f"1\n00:00:01,000 --> 00:00:02,000\n{lines}\n"
    assert asked("a.srt", content.encode()) == sent
    assert translated("a.srt", content.encode(), unchanged).decode().split() == content.split()


def test_in_a_transcript_names_need_no_capitals() -> None:
    said = ["John van Dam: yes", "Ann: no", "Note: one", "and so: on", "well", "a\nBob: b"]
    content = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n{text}\n\n" for n, text in enumerate(said))
    assert asked("a.srt", content.encode()) == ["yes", "no", "one", "and so: on", "well", "a", "b"]
    fewer = content.replace("Note:", "Note")
    assert asked("a.srt", fewer.encode())[:2] == ["John van Dam: yes", "Ann: no"]


def test_a_name_is_not_left_alone_on_a_line() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\nJOHN: Is it\nno?\n"
    made = translated("a.srt", content, lambda texts: ["aber nicht doch ja"])
    assert made == content.replace(b"Is it\nno?", b"aber\nnicht doch ja")


def test_a_translation_of_nothing_leaves_the_cue_as_it_is() -> None:
    content = b"1\n00:00:01,000 --> 00:00:02,000\none\n- two\n"
    assert translated("a.srt", content, lambda texts: ["", "&#10;zwei"]) == content.replace(b"two", b" zwei")


OPENINGS = [
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
SAID = st.lists(
    st.sampled_from(["old", "dog,", "<i>a</i>", "<i>", "</i>", "♪", "&", "1.", "{\\b1}", "no?\nyes", "<br>", "x:"]),
    min_size=1,
    max_size=6,
).map(" ".join)
CUES = st.lists(st.lists(st.tuples(st.sampled_from(OPENINGS), SAID), min_size=1, max_size=3), min_size=1, max_size=4)
ANSWERS = st.one_of(
    st.text(max_size=20),
    st.lists(st.sampled_from(["<r1>", "</r1>", "<r2/>", "&#10;", " ", "\n\n", "Hund"])).map("".join),
)


@given(CUES, st.data(), st.sampled_from(["\n", "\r\n"]), st.sampled_from([".srt", ".vtt"]))
def test_whatever_is_answered_cues_times_and_names_are_the_same(
    cues: list[list[tuple[str, str]]], data: st.DataObject, end: str, ending: str
) -> None:
    times = [f"00:00:{place:02}.000 --> 00:00:{place:02}.900 X1:1" for place in range(len(cues))]
    texts = ["\n".join(opening + said for opening, said in cue) for cue in cues]
    blocks = [f"{place}\n{time}\n{text}" for place, (time, text) in enumerate(zip(times, texts, strict=True))]
    head = ("WEBVTT\n\n" if ending == ".vtt" else "").replace("\n", end)
    content = head + ("\n\n".join(blocks) + "\n").replace("\n", end)

    def translate(sent: Sequence[str]) -> list[str]:
        return [data.draw(ANSWERS) for _ in sent]

    made = translated(f"a{ending}", content.encode(), translate).decode()
    assert made.startswith(head)
    assert made.endswith(end)
    found = made.removeprefix(head).removesuffix(end).split(end * 2)
    assert len(found) == len(blocks)
    for place, (block, cue) in enumerate(zip(found, cues, strict=True)):
        number, time, *lines = block.split(end)
        assert (number, time) == (str(place), times[place])
        rest = iter(lines)
        for opening, _ in cue:
            assert not opening or any(line.startswith(opening.rstrip()) for line in rest)


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


def test_empty_targets_are_filled_and_others_left_alone() -> None:
    made = translated("a.xliff", XLIFF.encode(), turned).decode()
    assert made == XLIFF.replace(
        "</source>\n",
        '</source>\n      <target>I &amp; dog<x id="2"/> <g id="1">old</g> The</target>\n',
    ).replace("<target/>", "<target>Sit</target>").replace(
        "c</source>",
        'c</source><target>c <bpt id="1">&lt;b></bpt>b<ept id="1">&lt;/b></ept> a</target>',
    )


def test_targets_that_are_said_to_be_new_are_filled() -> None:
    unit = '<trans-unit id="2"><source>Sit here</source><target state="{}">{}</target></trans-unit>'
    head, tail = XLIFF.split('    <trans-unit id="1">')[0], "</body></file></xliff>"
    for state in ("new", "needs-translation"):
        made = translated("a.xliff", f"{head}{unit.format(state, 'Sit here')}{tail}".encode(), turned).decode()
        assert made == f"{head}{unit.format('needs-review-translation', 'here Sit')}{tail}"
    segment = "<segment state='{}'><source>Sit here</source><target>{}</target></segment>"
    second = '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"><file id="f"><unit id="u">'
    end = "</unit></file></xliff>"
    made = translated("a.xlf", f"{second}{segment.format('initial', 'Sit here')}{end}".encode(), turned).decode()
    assert made == f"{second}{segment.format('translated', 'here Sit')}{end}"
    kept = f"{second}{segment.format('reviewed', 'Platz')}{end}"
    assert translated("a.xlf", kept.encode(), turned).decode() == kept


def test_segments_of_the_second_version_are_filled_as_well() -> None:
    content = (
        b'<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de"><file id="f">'
        b'<unit id="u"><segment><source>old <pc id="1">dog</pc></source></segment></unit></file></xliff>'
    )
    made = translated("a.xlf", content, turned)
    assert made == content.replace(b"</source>", b'</source><target><pc id="1">dog</pc> old</target>')


# Pages

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


def test_messages_without_a_translation_are_filled_and_all_others_left_alone() -> None:
    lines = ["  two lines,", "and a second one"]
    texts = ['Open the "old" <r1>file</r1> %s &amp; go', *map(str.strip, lines), "one file", "%d files"]
    assert asked("a.po", PO.encode()) == texts
    made = translated("a.po", PO.encode(), lambda texts: [text.replace("e", "E") for text in texts]).decode()
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


def test_messages_are_left_out_where_what_reads_them_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert readable() == list(ENDINGS)
    for name in ("translate", "translate.storage", "translate.storage.poparser", "translate.storage.pypo"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DocumentError, match=r"a\.po needs translate-toolkit; install it with pip install"):
        translated("a.po", PO.encode(), never)
    monkeypatch.setattr("regard.documents.document.find_spec", lambda name: None)
    assert readable() == [ending for ending in ENDINGS if ending != ".po"]


def test_forms_are_as_many_as_the_header_says() -> None:
    plural = b'\nmsgid "one file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n'
    for said, forms in ((b"nplurals=1", ["%D FILES"]), (b"", ["ONE FILE", "%D FILES"])):
        head = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: ' + said + b';\\n"\n'
        made = translated("a.po", head + plural, louder).decode()
        assert re.findall(r'msgstr\[\d\] "(.*)"', made) == forms


def test_messages_in_an_old_encoding_are_read() -> None:
    content = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n\nmsgid "é a"\nmsgstr ""\n'
    made = translated("a.po", content.encode("latin-1"), louder).decode()
    assert 'msgstr "É A"' in made
    assert "charset=UTF-8" in made


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


def test_a_page_is_translated_block_by_block_with_its_inline_tags() -> None:
    assert asked("a.html", PAGE.encode()) == [
        "A heading",
        'The "link"',
        "An image",
        "Name",
        "The page &amp; more",
        "Old <r1>dogs</r1>",
        "The <r1>old dog</r1> sees <r2>the&nbsp;house</r2>, &copy; <r3/> it<r4/>sleeps.",
        "All bold",
        "one",
        "two",
        "AT&amp;T © 2020 &lt;3",
    ]


def test_everything_but_the_text_of_a_page_is_kept_byte_for_byte() -> None:
    expected = PAGE
    for old, new in [
        ("The page &amp; more", "THE PAGE &amp; MORE"),
        ('"A heading">Old <em>dogs', '"A HEADING">OLD <em>DOGS'),
        ("The <b>old dog</b> sees\n   ", "THE <b>OLD DOG</b> SEES "),
        ("'The \"link\"'>the&nbsp;house</a>", '"THE &quot;LINK&quot;">THE&nbsp;HOUSE</a>'),
        (" it<br>sleeps.", " IT<br>SLEEPS."),
        ("All bold", "ALL BOLD"),
        ("<li>one<li>two", "<li>ONE<li>TWO"),
        ("An image", "AN IMAGE"),
        ("=Name", '="NAME"'),
        ("AT&T &copy 2020 <3", "AT&amp;T © 2020 &lt;3"),
    ]:
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    assert translated("a.htm", PAGE.encode(), louder).decode() == expected


def test_inline_tags_of_a_page_follow_their_words() -> None:
    content = b"<p>see <b>the old</b> dog <i>now</i></p>"
    assert translated("a.html", content, turned) == b"<p><i>now</i> dog <b>old the</b> see</p>"


def test_tags_that_are_not_closed_in_their_block_stay_between_the_words_they_were_between() -> None:
    content = b"<div>a b <b>c d<p>e f <i>g h</p>i j</i></b> k l</div>"
    assert translated("a.html", content, turned) == b"<div>b a <b>d c<p>f e <i>h g</p>j i</i></b> l k</div>"


def test_a_page_in_an_old_encoding_stays_in_it() -> None:
    content = '<meta charset="iso-8859-1"><p>caf\xe9 “x”</p>'.encode("cp1252")
    made = translated("a.html", content, lambda texts: [f"{text} Ω" for text in texts])
    assert made == '<meta charset="iso-8859-1"><p>caf\xe9 “x” &#937;</p>'.encode("cp1252")


def test_a_page_in_utf_16_stays_in_it() -> None:
    content = b"\xff\xfe" + "<p>old dog</p>".encode("utf-16-le")
    assert translated("a.html", content, turned) == b"\xff\xfe" + "<p>dog old</p>".encode("utf-16-le")


@pytest.mark.parametrize(
    "answer",
    ["Hund", "<r1>alter Hund", "alter</r1> <r1>Hund", "<r2>alter</r2> Hund", "<r1/>Hund", "<r1><r1>x</r1></r1> Hund"],
)
def test_tags_that_a_translator_loses_are_put_back(answer: str) -> None:
    made = translated("a.html", b"<p>an <b>old</b> dog</p>", lambda texts: [answer]).decode()
    words = " ".join(re.sub(r"</?r\d/?>", "", answer).split())
    assert made == f"<p>{words}<b></b></p>"


def test_a_translation_cannot_bring_markup_of_its_own() -> None:
    made = translated("a.html", b"<p>x</p>", lambda texts: ["<script>1</script> & &lt;b> &eacute; &amp;"])
    assert made == "<p>&lt;script&gt;1&lt;/script&gt; &amp; &lt;b&gt; é &amp;</p>".encode()


def test_an_attribute_cannot_be_left_by_a_translation() -> None:
    made = translated("a.html", b"<img alt='x'>", lambda texts: ["\" onerror='a'>"])
    assert made == b"<img alt=\"&quot; onerror='a'&gt;\">"


# Word


def word_document() -> bytes:
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


def test_a_word_document_is_translated_everywhere_and_nothing_else_changes() -> None:
    content = word_document()
    made = translated("a.docx", content, turned)
    document = docx.Document(io.BytesIO(made))
    assert [paragraph.text for paragraph in document.paragraphs] == [
        "house old The",
        "cat. red \ta and dog old the see We",
    ]
    assert document.paragraphs[0].style
    assert document.paragraphs[0].style.name == "Heading 1"
    runs = {run.text: run for run in document.paragraphs[1].runs}
    assert [text for text, run in runs.items() if run.bold] == ["dog old the"]
    assert [text for text, run in runs.items() if run.italic] == ["red"]
    assert [cell.text for cell in document.tables[0].rows[0].cells] == ["cell left", "12.50"]
    assert document.sections[0].header.paragraphs[0].text == "header the"
    assert document.sections[0].footer.paragraphs[0].text == "footer the"
    before, after = parts_of(content), parts_of(made)
    assert list(before) == list(after)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"word/document.xml", "word/header1.xml", "word/footer1.xml"}


def word(body: str) -> bytes:
    """A document as Word writes it, with this body."""
    declaration = "<?xml version='1.0' encoding=\"UTF-8\" standalone='yes'?>\r\n"
    document = f"{declaration}<w:document {W}><w:body>{body}</w:body></w:document>"
    return zipped({CONTENT_TYPES: "<Types/>", "word/document.xml": document})


def body(content: bytes) -> str:
    """The body of a document."""
    document = parts_of(content)["word/document.xml"].decode()
    etree.fromstring(document.encode())
    return document.partition("<w:body>")[2].removesuffix("</w:body></w:document>")


def run(text: str, looks: str = "") -> str:
    return f'<w:r>{looks}<w:t xml:space="preserve">{text}</w:t></w:r>'


BOLD = "<w:rPr><w:b/></w:rPr>"
FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'


@pytest.mark.parametrize(
    ("paragraph", "text", "expected"),
    [
        # Runs that Word has cut for its own reasons are one, its marks of spelling go.
        (
            f'<w:r w:rsidR="1"><w:t>un</w:t></w:r><w:proofErr w:type="spellStart"/>{run("do it")}',
            "undo it",
            '<w:r w:rsidR="1"><w:t xml:space="preserve">it undo</w:t></w:r>',
        ),
        # A bold word takes its looks along; the rest needs no tags.
        (
            f"<w:pPr><w:jc/></w:pPr>{run('an ')}{run('old', BOLD)}{run(' dog')}",
            "an <r1>old</r1> dog",
            f"<w:pPr><w:jc/></w:pPr>{run('dog ')}{run('old', BOLD)}{run(' an')}",
        ),
        # What is bold altogether has no tags.
        (run("an old", BOLD) + run(" dog", BOLD), "an old dog", run("dog old an", BOLD)),
        # A tab stays beside its word, a footnote as well, in runs of their own looks.
        (
            f"<w:r><w:t>a b</w:t><w:tab/><w:t>c</w:t></w:r><w:r>{BOLD}<w:footnoteReference w:id='2'/></w:r>{run(' d')}",
            "a b<r1/>c<r2/> d",
            f'{run("d ")[:-6]}<w:tab/><w:t xml:space="preserve">c</w:t></w:r><w:r>{BOLD}<w:footnoteReference '
            "w:id='2'/></w:r><w:r><w:t xml:space=\"preserve\"> b a</w:t></w:r>",
        ),
        # A link goes around its words.
        (
            f'{run("see ")}<w:hyperlink r:id="rId1" xmlns:r="r">{run("the page", BOLD)}</w:hyperlink>{run(" now")}',
            "see <r1>the page</r1> now",
            f'{run("now ")}<w:hyperlink r:id="rId1" xmlns:r="r">{run("page the", BOLD)}</w:hyperlink>{run(" see")}',
        ),
        # So does one that is a field; another field is one thing with its result.
        (
            f'{run("see ")}{FIELD.format("begin")}<w:r><w:instrText> HYPERLINK "x" </w:instrText></w:r>'
            f"{FIELD.format('separate')}{run('the page', BOLD)}{FIELD.format('end')}{run(' now')}",
            "see <r1>the page</r1> now",
            f'<w:r><w:t xml:space="preserve">now </w:t><w:fldChar w:fldCharType="begin"/><w:instrText> HYPERLINK "x" '
            f'</w:instrText><w:fldChar w:fldCharType="separate"/></w:r>{run("page the", BOLD)}<w:r>'
            '<w:fldChar w:fldCharType="end"/><w:t xml:space="preserve"> see</w:t></w:r>',
        ),
        (
            f"{run('see page ')}{FIELD.format('begin')}<w:r><w:instrText>PAGE</w:instrText></w:r>"
            f"{FIELD.format('separate')}{run('seven')}{FIELD.format('end')}{run(' now')}",
            "see page <r1/> now",
            '<w:r><w:fldChar w:fldCharType="begin"/><w:instrText>PAGE</w:instrText>'
            '<w:fldChar w:fldCharType="separate"/><w:t xml:space="preserve">seven</w:t><w:fldChar w:fldCharType="end"/>'
            '<w:t xml:space="preserve"> now page see</w:t></w:r>',
        ),
        # A bookmark keeps its ends in order, one that ends elsewhere stays whole.
        (
            f'{run("a ")}<w:bookmarkStart w:id="0"/>{run("b")}<w:bookmarkEnd w:id="0"/>{run(" c")}',
            "a <r1>b</r1> c",
            f'{run("c ")}<w:bookmarkStart w:id="0"/>{run("b")}<w:bookmarkEnd w:id="0"/>{run(" a")}',
        ),
        (
            f'<w:bookmarkStart w:id="0"/>{run("a ")}<w:hyperlink>{run("b ")}<w:bookmarkEnd w:id="0"/>{run("c")}'
            "</w:hyperlink>",
            "a <r1>b <r2/>c</r1>",
            None,
        ),
        # What was deleted stays so.
        (f"<w:del><w:r><w:delText>old</w:delText></w:r></w:del>{run('new')}", "new", None),
        # Entities are what they were.
        (run("R&amp;D &#233;t &lt;b&gt;"), "R&amp;D &#233;t &lt;b&gt;", run("&lt;b&gt; &#233;t R&amp;D")),
        # A field for content goes around its words, with its settings at its beginning.
        (
            f"{run('to ')}<w:sdt><w:sdtPr/><w:sdtContent>{run('whom')}</w:sdtContent></w:sdt>{run(' it')}",
            "to <r1>whom</r1> it",
            f"{run('it ')}<w:sdt><w:sdtPr/><w:sdtContent>{run('whom')}</w:sdtContent></w:sdt>{run(' to')}",
        ),
    ],
)
def test_a_paragraph_of_runs_is_one_text(paragraph: str, text: str, expected: str | None) -> None:
    content = word(f"<w:p>{paragraph}</w:p><w:sectPr/>")
    assert asked("a.docx", content) == [text]
    made = body(translated("a.docx", content, turned))
    if expected is not None:
        assert made == f"<w:p>{expected}</w:p><w:sectPr/>"


def test_text_boxes_are_translated_inside_and_move_as_a_whole() -> None:
    box = "<w:pict><w:txbxContent><w:p>{}</w:p></w:txbxContent></w:pict>"
    content = word(f"<w:p>{run('one ')}<w:r>{box.format(run('in side'))}</w:r>{run('two three')}</w:p>")
    assert asked("a.docx", content) == ["in side", "one <r1/>two three"]
    made = body(translated("a.docx", content, turned))
    assert box.format(run("side in")) in made
    assert re.sub(r"<w:pict>.*</w:pict>|<[^>]*>", "", made) == "three two one"


def test_paragraphs_without_words_and_other_parts_stay_byte_for_byte() -> None:
    paragraph = "<w:p ><w:r><w:t>12.5</w:t></w:r  ></w:p><w:p/><!-- x --><w:tbl><w:tc><w:p></w:p></w:tc></w:tbl>"
    content = word(f"{paragraph}<w:p>{run('x')}</w:p>")
    assert body(translated("a.docx", content, louder)) == f"{paragraph}<w:p>{run('X')}</w:p>"


def test_a_file_may_choose_its_own_prefixes() -> None:
    part = (
        '<d:document xmlns:d="http://purl.oclc.org/ooxml/wordprocessingml/main"><d:body><d:p><d:r><d:t>an old</d:t>'
        "</d:r></d:p></d:body></d:document>"
    )
    made = translated("a.docx", zipped({CONTENT_TYPES: "<Types/>", "word/document.xml": part}), turned)
    assert parts_of(made)["word/document.xml"].decode() == part.replace(
        "<d:t>an old", '<d:t xml:space="preserve">old an'
    )


# Slides


def slides() -> bytes:
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


def test_slides_are_translated_with_notes_and_tables() -> None:
    content = slides()
    made = translated("a.pptx", content, turned)
    slide = pptx.Presentation(io.BytesIO(made)).slides[0]
    assert slide.shapes.title.text == "title old The"
    runs = slide.placeholders[1].text_frame.paragraphs[0].runs
    assert [(run.text, run.font.bold) for run in runs] == [("now ", None), ("dog the", True), (" see We", None)]
    assert slide.notes_slide.notes_text_frame.text == "notes my"
    (table,) = (shape.table for shape in slide.shapes if shape.has_table)
    assert sorted(table.cell(0, 0).text.split()) == ["a", "cell", "in"]
    assert "\v" in table.cell(0, 0).text
    before, after = parts_of(content), parts_of(made)
    assert {name for name in before if before[name] != after[name]} == {
        "ppt/slides/slide1.xml",
        "ppt/notesSlides/notesSlide1.xml",
    }


# LibreOffice


def open_text() -> bytes:
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


def test_an_open_document_is_translated_with_its_notes() -> None:
    content = open_text()
    assert asked("a.odt", content) == ["The heading", "a note", "We see <r1>the dog</r1> and<r2/>cats<r3/> here."]
    made = translated("a.odt", content, turned)
    document = opendocument.load(io.BytesIO(made))
    (heading,) = document.getElementsByType(odf_text.H)
    assert teletype.extractText(heading) == "heading The"
    (span,) = document.getElementsByType(odf_text.Span)
    assert teletype.extractText(span) == "dog the"
    assert span.getAttribute("stylename") == "Bold"
    (note,) = document.getElementsByType(odf_text.NoteBody)
    assert teletype.extractText(note) == "note a"
    assert len(document.getElementsByType(odf_text.Tab)) == 1
    before, after = parts_of(content), parts_of(made)
    assert {name for name in before if before[name] != after[name]} == {"content.xml"}


ODF = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" xmlns:office="o" xmlns:style="s" xmlns:draw="d"'


def open_slides() -> bytes:
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.presentation",
            "content.xml": f'<?xml version="1.0" encoding="UTF-8"?>\n<office:document-content {ODF}><draw:page>'
            "<draw:frame><draw:text-box><text:p>An <text:span>old</text:span><text:line-break/> slide</text:p>"
            "</draw:text-box></draw:frame></draw:page></office:document-content>",
            "styles.xml": f"<office:document-styles {ODF}><style:header><text:p>My header</text:p></style:header>"
            "</office:document-styles>",
            "Pictures/a.png": b"\x89PNG\0",
            "META-INF/manifest.xml": "<manifest/>",
        }
    )


def test_open_slides_are_translated_with_their_headers() -> None:
    made = parts_of(translated("a.odp", open_slides(), louder))
    before = parts_of(open_slides())
    assert made["content.xml"] == before["content.xml"].replace(b"An ", b"AN ").replace(b"old", b"OLD").replace(
        b" slide<", b" SLIDE<"
    )
    assert made["styles.xml"] == before["styles.xml"].replace(b"My header", b"MY HEADER")
    assert made["Pictures/a.png"] == before["Pictures/a.png"]


def test_what_was_deleted_under_tracking_is_not_translated() -> None:
    content = zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"<office:text {ODF}><text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
            "<text:p>here</text:p></office:text>",
        }
    )
    assert asked("a.odt", content) == ["here"]


# Books

CHAPTER = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>One</title><script src="x"/></head>
<body><p id='a'><a id="p1"/>An <i>old</i>&nbsp;dog<br/> sleeps.</p><![CDATA[a < b]]><pre>x y</pre></body></html>"""
CONTENTS = """<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><docAuthor><text>Jane Doe</text></docAuthor><navMap>
<navPoint id="n"><navLabel><text>One</text></navLabel><content src="one.xhtml"/></navPoint></navMap></ncx>"""


def book() -> bytes:
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": "<container/>",
            "OEBPS/one.xhtml": CHAPTER,
            "OEBPS/toc.ncx": CONTENTS,
            "OEBPS/style.css": "p { color: red }",
        }
    )


def test_the_pages_of_a_book_are_translated() -> None:
    content = book()
    made = parts_of(translated("a.epub", content, louder))
    page = CHAPTER.replace("<title>One", "<title>ONE").replace("An <i>old</i>&nbsp;dog", "AN <i>OLD</i>&nbsp;DOG")
    page = page.replace(" sleeps.", " SLEEPS.").replace("<![CDATA[a < b]]>", "A &lt; B")
    assert made["OEBPS/one.xhtml"].decode() == page
    assert made["OEBPS/toc.ncx"].decode() == CONTENTS.replace("<text>One", "<text>ONE")
    before = parts_of(content)
    assert {name for name in before if before[name] != made[name]} == {"OEBPS/one.xhtml", "OEBPS/toc.ncx"}


@pytest.mark.parametrize(("name", "content"), [("a.epub", book()), ("a.odt", open_text()), ("a.odp", open_slides())])
def test_the_type_stays_first_and_uncompressed(name: str, content: bytes) -> None:
    made = translated(name, content, louder)
    with zipfile.ZipFile(io.BytesIO(made)) as file:
        first = file.infolist()[0]
    assert (first.filename, first.compress_type, first.header_offset, first.extra) == ("mimetype", 0, 0, b"")
    assert made[30:38] == b"mimetype"
    assert made[38 : 38 + 12] == b"application/"


# What is refused

ENTITIES = '<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY x "y"><!ENTITY z "&x;&x;">]>\n'
EXTERNAL = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
LAUGHS = "<!DOCTYPE a [" + "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9)) + '<!ENTITY l0 "ha">]>'


def renamed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert content.count(old) == 2
    return content.replace(old, new)


def encrypted(content: bytes) -> bytes:
    """The same with the flag for a password set on its first file."""
    made = bytearray(content)
    made[6] |= 1
    made[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(made)


def named(name: str) -> bytes:
    return zipped({CONTENT_TYPES: "<Types/>", "word/document.xml": "<a/>", name: "x"})


def twice() -> bytes:
    return renamed(named("word/documents.xm"), b"word/documents.xm", b"word/document.xml")


def with_prologue(prologue: str) -> bytes:
    return zipped({CONTENT_TYPES: "<Types/>", "word/document.xml": f"{prologue}<a {W}>&x;</a>"})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pdf", b"%PDF", "a.pdf is no document that is read here; there are .txt"),
        ("a", b"", "a is no document"),
        ("a\nb.txt", b"\xff", "a b.txt is not utf-8 text: byte 0"),
        ("a.txt", b"ab\0", "has NUL characters"),
        ("a.txt", b"caf\xe9", "is not utf-8 text: byte 3"),
        ("a.txt", "x".encode("utf-16"), "is not utf-8 text"),
        ("a.html", b"\x89PNG\r\n\x1a\n\0", "is not utf-8 text"),
        ("a.html", b'<meta charset="utf-7">x', "is written in 'utf-7', which is not read here"),
        ("a.html", b'<meta charset="rot13">x', "is written in 'rot13'"),
        ("a.html", b'<meta charset="no such">x', "is written in 'no'"),
        ("a.srt", b"Dear Sir,", "has no times as subtitles have them"),
        ("a.vtt", b"1\n00:00:01,000 --> 00:00:02,000\nx", "does not begin with WEBVTT"),
        ("a.xliff", b"<tmx/>", "its first element is not <xliff>"),
        ("a.xliff", b"", "is damaged or cut off"),
        ("a.xliff", XLIFF.encode()[:-20], "is damaged or cut off"),
        ("a.xliff", f"{ENTITIES}<xliff>&z;</xliff>".encode(), "declares XML entities of its own"),
        ("a.xhtml", f"{LAUGHS}<html>&l9;</html>".encode(), "declares XML entities of its own"),
        ("a.xhtml", b"<html>" + b"<div>" * 300 + b"</div>" * 300 + b"</html>", "has elements in more than 256 others"),
        ("a.xhtml", b"<html><p>x</html>", "is damaged or cut off, its XML cannot be read"),
        ("a.xhtml", b"<html>&nbsp;</html>", "is damaged or cut off, its XML cannot be read"),
        ("a.docx", b"", "it is no zip file"),
        ("a.docx", b"%PDF-1.7", "it is no zip file"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "it may be an older format, or protected by a password"),
        ("a.docx", word_document()[:-30], "is damaged or cut off, it cannot be unpacked"),
        ("a.docx", word_document()[:2000], "is damaged or cut off, it cannot be unpacked"),
        ("a.docx", slides(), "it has no word/document.xml"),
        ("a.pptx", word_document(), "it has no ppt/presentation.xml"),
        ("a.odt", open_slides(), "its type is 'application/vnd.oasis.opendocument.presentation'"),
        ("a.odp", word_document(), "its type is 'nothing'"),
        ("a.epub", open_text(), "its type is not 'application/epub+zip'"),
        ("a.docx", encrypted(word_document()), "is protected by a password"),
        ("a.docx", named("../evil.txt"), "holds '../evil.txt', which is no name"),
        ("a.docx", named("word/../../evil.txt"), "which is no name"),
        ("a.docx", named("/etc/evil.txt"), "which is no name"),
        ("a.docx", renamed(named("word+evil"), b"word+evil", b"word\\evil"), "which is no name"),
        ("a.docx", named("C:evil.txt"), "which is no name"),
        ("a.docx", twice(), "holds 'word/document.xml' twice"),
        ("a.docx", with_prologue(ENTITIES), "has a part word/document.xml that declares XML entities"),
        ("a.docx", with_prologue(EXTERNAL), "has a part word/document.xml that declares XML entities"),
        ("a.docx", with_prologue(LAUGHS), "has a part word/document.xml that declares XML entities"),
        ("a.docx", with_prologue("<!-- x -->\n<?y z?>" + EXTERNAL), "that declares XML entities"),
        ("a.docx", with_prologue('<!DOCTYPE a SYSTEM "file:///dev/zero" [ ]>'), "that declares XML entities"),
        ("a.docx", with_prologue("\0"), "has NUL characters"),
    ],
)
def test_what_cannot_be_trusted_is_refused_in_a_sentence(name: str, content: bytes, said: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(said)) as caught:
        translated(name, content, never)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_of_packing_that_documents_do_not_use_are_refused(method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.writestr("mimetype", "application/epub+zip")
    with pytest.raises(DocumentError, match="is packed in a way"):
        translated("a.epub", out.getvalue(), never)


def test_a_document_type_from_outside_is_not_fetched() -> None:
    content = b'<!DOCTYPE html SYSTEM "http://127.0.0.1:9/x.dtd"><html><p>one &x; two</p></html>'
    assert translated("a.xhtml", content, louder) == content.replace(b"one", b"ONE").replace(b"two", b"TWO")


def test_archives_in_a_document_are_not_opened() -> None:
    inner = zipped({"../evil": b"\0" * (LEAST + 1)})
    parts = {**parts_of(word(f"<w:p>{run('x')}</w:p>")), "word/embeddings/a.zip": inner}
    made = parts_of(translated("a.docx", zipped(parts, stored=["word/embeddings/a.zip"]), louder))
    assert made["word/embeddings/a.zip"] == inner


# Bombs


class Counted:
    """How many bytes zip files were unpacked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        plain = zipfile.ZipExtFile.read

        def read(member: Any, n: int | None = -1) -> bytes:
            data = plain(member, n)
            self.bytes += len(data)
            return data

        monkeypatch.setattr(zipfile.ZipExtFile, "read", read)


def bomb(files: int = 40) -> bytes:
    """Many files of ten megabytes of nothing, a few kilobytes each."""
    zeros = b"\0" * 10_000_000
    return zipped({"mimetype": "application/epub+zip", **{f"{number}.bin": zeros for number in range(files)}})


def test_a_bomb_is_refused_before_much_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bomb()
    assert len(content) < 500_000
    counted = Counted(monkeypatch)
    with pytest.raises(DocumentError, match="unpacks to more than 1,000,000 bytes; it is not trusted"):
        translated("a.epub", content, never, Limits(size=1_000_000))
    assert counted.bytes <= 1_000_001
    with pytest.raises(DocumentError, match="unpacks to more than"):
        translated("a.epub", content, never)
    assert counted.bytes <= 1_000_001 + max(LEAST, 100 * len(content)) + 1


def test_a_bomb_that_lies_about_its_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(bomb(2))
    size = struct.pack("<I", 10_000_000)
    while size in content:
        place = content.index(size)
        content[place : place + 4] = struct.pack("<I", 10)
    counted = Counted(monkeypatch)
    with pytest.raises(DocumentError, match="damaged"):
        translated("a.epub", bytes(content), never)
    assert counted.bytes < 100


def test_files_that_share_their_bytes_count_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand names for one file of ten megabytes."""
    one = zipped({"a0000.bin": b"\0" * 10_000_000})
    place = one.index(b"PK\x01\x02")
    end = one.index(b"PK\x05\x06")
    directory = one[place:end] * 1000
    tail = one[end : end + 8] + struct.pack("<HHII", 1000, 1000, len(directory), place) + b"\0\0"
    counted = Counted(monkeypatch)
    with pytest.raises(DocumentError, match="twice"):
        translated("a.epub", one[:place] + directory + tail, never)
    assert counted.bytes == 0


def test_too_many_files_are_refused_before_any_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = zipped({f"{number}": b"" for number in range(101)})
    counted = Counted(monkeypatch)
    with pytest.raises(DocumentError, match="holds more than 100 files"):
        translated("a.epub", content, never, Limits(entries=100))
    assert counted.bytes == 0


def test_files_that_are_too_large_are_refused_unread() -> None:
    with pytest.raises(DocumentError, match=r"a\.txt has 11 bytes, and may have 10"):
        translated("a.txt", b"x" * 11, never, Limits(text=10))
    with pytest.raises(DocumentError, match=r"has a part OEBPS/one\.xhtml of more than 10 bytes"):
        translated("a.epub", book(), never, Limits(text=10))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", b"<a" * 40_000),
        ("a.html", b'<a ="<a" ' * 10_000),
        ("a.html", b"<b>" * 20_000 + b"x" + b"</b>" * 20_000),
        ("a.html", b"<b>" * 20_000 + b"x" + b"</i>" * 20_000),
        ("a.html", b"<b>x <i>" * 10_000),
        ("a.html", b"x<br> " * 10_000),
        ("a.html", b"<!--" * 20_000),
        ("a.html", b"<title>" * 10_000),
        ("a.html", b"<code>" * 10_000),
        ("a.html", b"&" * 40_000 + b"x"),
        ("a.srt", b"0:00:01,0 --> 0:00:02,0\n" + b"x <i>\n" * 30_000),
        ("a.srt", b"0:00:01,0 --> 0:00:02,0\n" + b"x " * 20_000),
        ("a.srt", b"0:00:01,0 --> 0:00:02,0\n" + b"<v A>" * 20_000),
        ("a.srt", b"0:00:01,0 --> 0:00:02,0\n" + b"- JOHN" * 20_000),
        ("a.srt", b"0:00:01,0 --> 0:00:02,0\nA" + b"</b>" * 20_000),
        ("a.srt", b"0:00:01,0 --> 0:00:02,0\n" + b"X: " * 20_000),
        ("a.docx", word(f"<w:p>{'<w:r><w:tab/></w:r> ' * 20_000}{run('x')}</w:p>")),
        ("a.docx", word(f"<w:p>{FIELD.format('begin') * 10_000}{run('x')}{FIELD.format('end') * 10_000}</w:p>")),
        ("a.docx", word(f"<w:p>{'<w:hyperlink>' * 200}{run('x')}{'</w:hyperlink>' * 200}</w:p>")),
        ("a.xhtml", b"<p>" + b"<b>" * 250 + b"x" + b"</b>" * 250 + b"</p>"),
    ],
)
def test_large_and_odd_files_take_no_more_than_their_length(name: str, content: bytes) -> None:
    """What grew with the square of the length would take minutes here."""
    made = translated(name, content, unchanged)
    if name != "a.srt":
        assert asked(name, made) == asked(name, content)


# Files that nobody meant

EXAMPLES: dict[str, bytes] = {
    ".txt": b"One & two\r\n three\n",
    ".html": PAGE.encode(),
    ".htm": b"<p>see <b>the old</b> dog <i title='x'>now</i></p>" * 3,
    ".xhtml": CHAPTER.encode(),
    ".srt": SUBTITLES.encode(),
    ".vtt": CAPTIONS.encode(),
    ".xliff": XLIFF.encode(),
    ".xlf": XLIFF.replace("UTF-8", "UTF-16").encode("utf-16"),
    ".po": PO.encode(),
    ".docx": word_document(),
    ".pptx": slides(),
    ".odt": open_text(),
    ".odp": open_slides(),
    ".epub": book(),
}
MARKUP = [b"<", b">", b"&", b"</w:p>", b"<w:p>", b"<r1>", b"</r1>", b"<!--", b"]]>", b"<![CDATA[", b'"', b"&#0;", b"\0"]


def mutations(content: bytes) -> st.SearchStrategy[bytes]:
    """The same file with a few stretches cut out, doubled or written over, or cut off."""
    place = st.integers(0, len(content))
    new = st.one_of(st.binary(max_size=4), st.sampled_from(MARKUP))
    edit = st.tuples(place, st.integers(0, 40), st.booleans(), new)

    def made(edits: list[tuple[int, int, bool, bytes]], end: int | None) -> bytes:
        out = content
        for start, length, twice, middle in edits:
            stretch = out[start : start + length] * 2 if twice else middle
            out = out[:start] + stretch + out[start + length :]
        return out[:end]

    return st.builds(made, st.lists(edit, max_size=4), st.one_of(st.none(), place))


def well_formed(content: bytes) -> bool:
    """Whether another parser than ours takes it for XML."""
    try:
        expat.ParserCreate().Parse(content, True)
    except (expat.ExpatError, LookupError, ValueError):
        return False
    return True


def works_or_is_refused(name: str, content: bytes) -> None:
    """And what works is whole."""
    try:
        made = translated(name, content, turned)
    except DocumentError:
        return
    if zipfile.is_zipfile(io.BytesIO(content)) and name.endswith(tuple(ENDINGS[-5:])):
        before, after = parts_of(content), parts_of(made)
        assert list(before) == list(after)
        assert all(well_formed(after[name]) for name in before if well_formed(before[name]))
    elif name.endswith((".xhtml", ".xliff", ".xlf")):
        assert well_formed(made) or not well_formed(content)


def test_there_is_an_example_of_every_ending() -> None:
    assert set(EXAMPLES) == set(ENDINGS)
    for ending, content in EXAMPLES.items():
        assert asked(f"a{ending}", content)


@pytest.mark.parametrize("ending", EXAMPLES)
@given(data=st.data())
def test_any_bytes_work_or_are_refused(ending: str, data: st.DataObject) -> None:
    works_or_is_refused(f"a{ending}", data.draw(mutations(EXAMPLES[ending])))


@pytest.mark.parametrize(
    ("ending", "part"),
    [
        (".docx", "word/document.xml"),
        (".pptx", "ppt/slides/slide1.xml"),
        (".odt", "content.xml"),
        (".odp", "styles.xml"),
        (".epub", "OEBPS/one.xhtml"),
        (".epub", "mimetype"),
    ],
)
@given(data=st.data())
def test_any_part_in_an_archive_works_or_is_refused(ending: str, part: str, data: st.DataObject) -> None:
    parts = parts_of(EXAMPLES[ending])
    parts[part] = data.draw(mutations(parts[part]))
    works_or_is_refused(f"a{ending}", zipped(parts))


@pytest.mark.parametrize("ending", ENDINGS)
@given(content=st.binary(max_size=300))
def test_noise_works_or_is_refused(ending: str, content: bytes) -> None:
    works_or_is_refused(f"a{ending}", content)
    works_or_is_refused(f"a{ending}", b"PK\x03\x04" + content)


def inline(depth: int) -> st.SearchStrategy[str]:
    """XHTML inside a paragraph: words, empty elements, elements around more of the same."""
    word = st.sampled_from(
        ["dog ", "old ", "x", "&amp; ", "&#233;t", " ", "\n  ", "<br/>", "<!-- c -->", "<code>k</code>"]
    )
    if not depth:
        return word
    name = st.sampled_from(["b", "i", "span", "div"])
    around = st.builds(lambda tag, inside: f"<{tag}>{inside}</{tag}>", name, inline(depth - 1))
    return st.lists(st.one_of(word, around), max_size=6).map("".join)


class Seen(HTMLParser):
    """The tags, and the words, of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.letters = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.letters += data


@given(inline(3))
def test_whatever_is_inside_a_page_comes_back_whole(inside: str) -> None:
    content = f"<html><p>{inside}</p></html>"
    made = translated("a.xhtml", content.encode(), turned).decode()
    etree.fromstring(made)
    before, after = Seen(content), Seen(made)
    assert sorted(before.tags) == sorted(after.tags)
    assert sorted("".join(before.letters.split())) == sorted("".join(after.letters.split()))
    same = translated("a.xhtml", content.encode(), unchanged).decode()
    assert "".join(same.split()) == "".join(content.split())


RUN = st.builds(
    lambda text, bold, tab: f"<w:r>{BOLD if bold else ''}<w:t>{text}</w:t>{tab}</w:r>",
    st.sampled_from(["old ", "dog", " a &amp; b", "", " "]),
    st.booleans(),
    st.sampled_from(
        ["", "<w:tab/>", "<w:br/>", '<w:fldChar w:fldCharType="begin"/>', '<w:fldChar w:fldCharType="end"/>']
    ),
)
MARKS = st.sampled_from([f'<w:bookmark{side} w:id="{number}"/>' for side in ("Start", "End") for number in (0, 1)])


def runs(depth: int) -> st.SearchStrategy[str]:
    """What is inside a paragraph of Word's."""
    link = [st.builds(lambda inside: f"<w:hyperlink>{inside}</w:hyperlink>", runs(depth - 1))] if depth else []
    return st.lists(st.one_of(RUN, MARKS, *link), max_size=5).map("".join)


@given(runs(2))
def test_whatever_is_inside_a_paragraph_comes_back_whole(inside: str) -> None:
    content = word(f"<w:p>{inside}</w:p>")
    made = body(translated("a.docx", content, turned))
    kinds = r"<w:(?:tab|br|fldChar|bookmark|hyperlink)[^>]*>"
    assert sorted(re.findall(kinds, made)) == sorted(re.findall(kinds, inside))
    letters = [sorted("".join(re.sub(r"<[^>]*>", "", text).split())) for text in (made, inside)]
    assert letters[0] == letters[1]
    assert not re.search(r"<w:r>(?:(?!</w:r>).)*<w:r>", made)
