"""Tags come back where their words went, balanced, each once."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.translate.tags import Ends, parse, partings, restore


def carried(text: str, target: str, links: list[tuple[int, int]]) -> str:
    return restore(parse(text), [target], [links])


@pytest.mark.parametrize(
    ("text", "plain", "target", "links", "expected"),
    [
        ("the <b>red</b> house", "the red house", "la casa rossa", [(0, 0), (1, 2), (2, 1)], "la casa <b>rossa</b>"),
        ("<b>red house</b>!", "red house!", "casa rossa!", [(0, 1), (1, 0)], "<b>casa rossa</b>!"),
        ("see <b>dog</b> .", "see dog .", "siehe Hund.", [(0, 0), (1, 1)], "siehe <b>Hund</b>."),
        ("(<i>Stop.</i>)", "(Stop.)", "(Halt.)", [(0, 0)], "(<i>Halt.</i>)"),
        ("<i><b>a</b> b</i>", "a b", "y x", [(0, 1), (1, 0)], "<i>y <b>x</b></i>"),
        ("one<br/>two", "one two", "eins zwei", [(0, 0), (1, 1)], "eins <br/>zwei"),
        ("one <br> two", "one two", "eins zwei", [(0, 0), (1, 1)], "eins <br> zwei"),
        ("you have %d mails", "you have mails", "du hast Post", [(0, 0), (1, 1), (2, 2)], "du hast %d Post"),
        ("Hello {name}, hi", "Hello, hi", "Hallo, hi", [(0, 0), (1, 1)], "Hallo {name}, hi"),
        ("It costs {{ price }}.", "It costs.", "Es kostet.", [(0, 0), (1, 1)], "Es kostet {{ price }}."),
        ("{count} files", "files", "Dateien", [(0, 0)], "{count} Dateien"),
        ("a &amp; <b>b</b>", "a & b", "x & y", [(0, 0), (1, 1), (2, 2)], "x &amp; <b>y</b>"),
        ("a & {b}", "a &", "x &", [(0, 0), (1, 1)], "x & {b}"),
        ("&copy;&nbsp;<b>x</b>", "©\xa0x", "©\xa0y", [(0, 0), (1, 1)], "&copy;&nbsp;<b>y</b>"),
        ("AT&T; here", "AT&T; here", "AT&T; hier", [(0, 0), (1, 1)], "AT&T; hier"),
        ("<b>lost</b> word", "lost word", "Wort", [(1, 0)], "<b></b>Wort"),
        ("<b>open only", "open only", "nur offen", [(0, 1), (1, 0)], "nur <b>offen"),
        ("<a href='x?a=1&b=2'>link</a>", "link", "Verweis", [(0, 0)], "<a href='x?a=1&b=2'>Verweis</a>"),
        ("<a href=\"a>b\" c='1 > 0'>x</a>", "x", "y", [(0, 0)], "<a href=\"a>b\" c='1 > 0'>y</a>"),
        ("<b>x</b> <i>y</i>", "x y", "z", [(0, 0), (1, 0)], "<b>z</b><i></i>"),
        ("100% sure %s", "100% sure", "100% sicher", [(0, 0), (1, 1)], "100% sicher %s"),
        ("plain < text", "plain < text", "a < b", [(0, 0)], "a < b"),
        ("if a<b and c>d", "if a<b and c>d", "x", [(0, 0)], "x"),
    ],
)
def test_tags_go_where_their_words_went(
    text: str, plain: str, target: str, links: list[tuple[int, int]], expected: str
) -> None:
    assert [piece.plain for piece in parse(text).pieces] == [plain]
    assert carried(text, target, links) == expected


@pytest.mark.parametrize(
    "text",
    [
        "See <b>the old dog</b>, {name}!",
        "The dog, {name}, sleeps.",
        '({name}) and "{name}"',
        "http://x/?a={id}&b=2 works",
        "%s %d",
        "%a{};",
        "%.2f of %5d, %-10s %ld %% and %(total)s",
        "{first name} {0,number} ${x} #{y}",
        "<b>bold <i>both</i></b>, <i>slanted</i>.",
        "“<q>Stop!</q>” he said.",
        "a <img src='x' alt=\"1 > 0\"/> b",
        "<ul><li>The dog</li><li>The <b>cat</b></li></ul>",
        "<?xml version='1.0'?><p>The dog sleeps.</p>\n<p>It is &quot;old&quot;.</p>",
        "<!DOCTYPE html><p>x</p><script>if (a<b) { c(); }</script><!-- no --> y",
        "word<![CDATA[ raw <b> ]]>word",
        "un<b>believ</b>able",
        "",
        "  <b>spaced</b>  ",
    ],
)
def test_a_translation_into_itself_is_the_text(text: str) -> None:
    marked = parse(text)
    plains = [piece.plain for piece in marked.pieces]
    links = [[(number, number) for number in range(len(plain.split()))] for plain in plains]
    assert restore(marked, plains, links).split() == text.split()


@pytest.mark.parametrize("text", [" %a{};", "<b>x </b>{y}.", "<i><b>x </b></i>{y}, {z} !"])
def test_a_space_that_is_lost_moves_no_tag(text: str) -> None:
    marked = parse(text)
    links = [[(number, number) for number in range(len(piece.plain.split()))] for piece in marked.pieces]
    made = restore(marked, [piece.plain for piece in marked.pieces], links)
    assert "".join(made.split()) == "".join(text.split())


def test_blocks_are_translated_one_by_one() -> None:
    marked = parse("<ul><li>The dog</li> <li>The <b>cat</b></li></ul>")
    assert [piece.plain for piece in marked.pieces] == ["The dog", "The cat"]
    assert marked.breaks == ["<ul><li>", "</li> <li>", "</li></ul>"]


def test_tags_in_tags_without_end_stand_alone() -> None:
    text = "<b>" * 3000 + "x" + "</b>" * 3000
    made = restore(parse(text), ["y"], [[(0, 0)]])
    assert made.count("<b>") == made.count("</b>") == 3000


class Balance(HTMLParser):
    """Fails where a tag closes what is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


def trees(depth: int) -> st.SearchStrategy[str]:
    word = st.sampled_from(["one", "two,", "three.", "(four)", "five"])
    alone = st.sampled_from(["<br/>", "{x}", "%s", "<br>"])
    leaf = st.one_of(word, word, alone)
    if not depth:
        return leaf
    inner = st.lists(trees(depth - 1), max_size=3).map(" ".join)
    tagged = st.tuples(st.sampled_from("biq"), inner).map(lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0]}>")
    return st.one_of(leaf, tagged)


TEXTS = st.lists(trees(3), max_size=5).map(" ".join)
PIECES = re.compile(r"<[^>]*>|\{x\}|%s")


@given(TEXTS, st.lists(st.sampled_from(["eins", "zwei,", "drei.", "(vier)"]), max_size=6), st.data())
def test_every_tag_comes_back_once_and_balanced(text: str, words: list[str], data: st.DataObject) -> None:
    marked = parse(text)
    if len(marked.pieces) != 1:
        return
    count = len(marked.pieces[0].plain.split())
    target = " ".join(words)
    pairs = [(left, right) for left in range(count) for right in range(len(words))]
    links = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    made = restore(marked, [target], [links])
    assert sorted(PIECES.findall(made)) == sorted(PIECES.findall(text))
    checker = Balance()
    checker.feed(made)
    checker.close()
    assert not checker.open
    assert PIECES.sub("", made).split() == target.split() or "".join(PIECES.sub("", made).split()) == target.replace(
        " ", ""
    )


@given(st.text(st.sampled_from("ab <>/&;{}%s\n"), max_size=30))
def test_any_text_can_be_read_and_written_back(text: str) -> None:
    marked = parse(text)
    plains = [piece.plain for piece in marked.pieces]
    links = [[(number, number) for number in range(len(plain.split()))] for plain in plains]
    made = restore(marked, plains, links)
    assert "".join(html.unescape(made).split()) == "".join(html.unescape(text).split())


OLD = re.compile(  # what parts a text, as one expression: true, and slow where much begins and nothing ends
    r"(?:(?<!\s)\s++)?(?:<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<![A-Za-z][^>]*>"
    r"|<(?:script|style)\b[^>]*>.*?</(?:script|style)\s*>|</?(?:p|li|h[1-6])(?![\w.:-])\s*/?>)\s*",
    re.DOTALL | re.IGNORECASE,
)
OPENINGS = ("<!--", "<![CDATA[", "<?", "<!x", "<script", "<style>", "<script>")
ENDINGS = ("-->", "]]>", "?>", ">", "</script>", "</STYLE  >", "--", "]")


@given(st.lists(st.sampled_from([*OPENINGS, *ENDINGS, " ", "\n", "a", "<p>", "</li>"]), max_size=30).map("".join))
def test_what_is_left_as_it_is_ends_at_its_first_end(text: str) -> None:
    assert list(partings(text)) == [found.span() for found in OLD.finditer(text)]


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("before", ["", "-->]]>?>></script>", "<!---->"])
def test_beginnings_without_an_end_cost_no_more_than_their_number(
    opening: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, work = Ends.look, []

    def counted(self: Ends, ending: str, place: int) -> re.Match[str] | None:
        found = look(self, ending, place)
        work.append((found.end() if found else len(self.text)) - place)
        return found

    monkeypatch.setattr(Ends, "look", counted)
    for count in (1000, 2000):
        work.clear()
        text = before + opening * count
        parse(text)
        assert sum(work) <= 3 * len(text)
    assert work, "ends are looked for there, and nowhere else"
