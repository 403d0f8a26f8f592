"""Addresses of pages and of mail pass through as they are, and the model does not get them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.documents import translated
from regard.text.addresses import ADDRESS, worded
from regard.translate import tags
from regard.translate.alignment import Alignment
from regard.translate.carrying import of_markup, of_text
from regard.translate.translation import Translation

PLAIN = [
    "https://example.org",
    "http://example.org:8080/a/b.html?x=1&y=%20#top",
    "https://en.wikipedia.org/wiki/Attention_(machine_learning)",
    "ftp://example.org/a,b;c",
    "HTTPS://EXAMPLE.ORG/",
    "www.example.org/~me/",
    "https://example.org/{id}?q=%d",
    "https://example.org/Käse",
    "info@example.org",
    "mailto:first.last+tag@mail.example.co.uk",
    "müller@example.de",
    "[X7X]",  # Weblate's, for a placeholder
]


@pytest.mark.parametrize("address", PLAIN)
@pytest.mark.parametrize("around", ["{}", "see {}.", "({})", "“{}”,", "<{}>", "at {}: yes", "请看{}。好", "[x]({})"])
def test_an_address_ends_where_its_sentence_goes_on(address: str, around: str) -> None:
    assert ADDRESS.findall(around.format(address)) == [address]


@pytest.mark.parametrize(
    "text", ["example.org", "e.g. this", "and/or", "a@b", "@name", "12:30", "x://", "http://", "www.", "a.b@", "C://"]
)
def test_other_words_are_none(text: str) -> None:
    assert worded(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "a" * 50_000,
        "a@" * 30_000,
        "a@" + "a." * 30_000,
        "http://(" * 10_000,
        "<a>x" * 20_000,
        "<a>" * 20_000,
        "http://" + "." * 50_000,
        "x-" * 30_000,
    ],
)
def test_what_only_seems_to_become_one_costs_no_more_than_its_length(text: str) -> None:
    assert not ADDRESS.findall(text)
    plain = "".join(piece.plain for piece in tags.parse(text).pieces)
    assert plain.replace(" ", "") == text.replace("<a>", "")  # spaces keep apart what was parted by a tag


def turned(plain: str) -> Translation:
    """A translation whose words are those of the source from last to first."""
    words = plain.split()
    soft = np.eye(len(words), dtype=np.float32)[::-1]
    links = [(place, len(words) - 1 - place) for place in range(len(words))]
    text = " ".join(reversed(words))
    return Translation(plain, text, tokens=words, alignment=Alignment(words, text.split(), soft, links))


@pytest.mark.parametrize(
    ("text", "sent", "expected"),
    [
        ("see https://a.org now .", ["see now ."], ". https://a.org now see"),
        ("write to me@a.org.", ["write to."], "to me@a.org. write"),
        (
            " one\r\nhttps://a.org, me@a.org\r\n\ntwo three",
            ["one", "two three"],
            " one\r\nhttps://a.org, me@a.org\r\n\nthree two",
        ),
        ("https://a.org\n", [], "https://a.org\n"),
        ("dog me@a.org (https://a.org)", ["dog ()"], "me@a.org (https://a.org) dog"),
    ],
)
def test_the_model_gets_no_address_and_each_comes_back(text: str, sent: list[str], expected: str) -> None:
    carried = of_text(text)
    assert [plain.strip() for plain in carried.plain] == sent
    made = carried.finished([turned(plain) for plain in carried.plain])
    assert (made.source, made.text) == (text, expected)


WORDS = st.sampled_from(
    ["dog", "old,", "(a", "b)", "no.", "-", *PLAIN, "(https://x.org)", "me@x.org,", "<https://x.org>"]
)
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from([" ", "  ", "\n", " \r\n", "\t"]))).map(
    lambda pairs: "".join(word + space for word, space in pairs) + "www.example.org"
)


@given(TEXTS)
def test_nothing_is_lost_and_words_are_aligned_with_their_own(text: str) -> None:
    carried = of_text(text)
    assert not any(ADDRESS.search(plain) for plain in carried.plain)
    made = carried.finished([turned(plain) for plain in carried.plain])
    assert sorted(ADDRESS.findall(made.text)) == sorted(ADDRESS.findall(text))
    assert sorted("".join(made.text.split())) == sorted("".join(text.split()))
    assert len(made.text.splitlines()) == len(text.splitlines())
    if made.alignment is not None:
        assert (made.alignment.source, made.alignment.target) == (text.split(), made.text.split())
        for source, target in made.alignment.pairs:
            left, right = ADDRESS.search(text.split()[source]), ADDRESS.search(made.text.split()[target])
            assert (left and left[0]) == (right and right[0])


@given(TEXTS)
def test_without_alignments_every_address_still_comes_back(text: str) -> None:
    for carried in (of_text(text), of_markup(text.replace("<", "("))):
        made = carried.finished([Translation(plain, "ein Hund") for plain in carried.plain])
        assert sorted(ADDRESS.findall(made.text)) == sorted(ADDRESS.findall(made.source))


def test_two_addresses_that_come_to_stand_side_by_side_stay_two() -> None:
    carried = of_text("see https://a.org (https://b.org)")
    made = carried.finished([Translation(plain, "sieh") for plain in carried.plain])
    assert ADDRESS.findall(made.text) == ["https://a.org", "https://b.org"]


def test_in_markup_an_address_stays_as_it_is_written() -> None:
    text = "<p>see <b>https://a.org/?x=1&amp;y=2</b> &lt;me@a.org&gt; now</p><p>www.a.org</p>"
    carried = of_markup(text)
    assert [plain.split() for plain in carried.plain] == [["see", "<>", "now"]]
    made = carried.finished([turned(plain) for plain in carried.plain])
    assert made.text.count("<b>https://a.org/?x=1&amp;y=2</b>") == made.text.count("&lt;me@a.org&gt;") == 1
    assert made.text.endswith("</p><p>www.a.org</p>")


@pytest.mark.parametrize(
    "link",
    [
        '<a href="https://a.org/x">https://a.org/x</a>',
        '<a href="https://a.org/xyz"><span class="invisible">https://</span><span>a.org/x</span><span>yz</span></a>',
        "<r1><r2>www.a.org</r2></r1>",
    ],
)
def test_a_link_that_says_its_address_is_carried_whole(link: str) -> None:
    carried = of_markup(f"see {link} now, {link}.")
    assert carried.plain == ["see now,."]
    made = carried.finished([Translation("see now,.", "jetzt, sieh.")])
    assert made.text == f"jetzt, sieh. {link} {link}"
    assert of_markup(f"<p>{link}</p>").plain == []


def test_a_link_that_says_more_is_around_its_words() -> None:
    carried = of_markup("<b><b>see</b> www.a.org</b> <i>now</i> <i><i>www.b.org</i></i>")
    assert [plain.split() for plain in carried.plain] == [["see", "now"]]
    made = carried.finished([turned(plain) for plain in carried.plain])
    assert made.text.count("<i>www.b.org</i>") == 1
    assert made.text.count("<b>") == made.text.count("</b>") == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "https://a.org\nme@a.org, www.a.org\n"),
        ("a.html", "<p><a href='https://a.org'>https://a.org</a></p><img alt='me@a.org'>"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nwww.a.org\n"),
    ],
)
def test_texts_of_documents_that_are_addresses_are_not_sent(name: str, content: str) -> None:
    def never(texts: object) -> list[str]:
        raise AssertionError(f"asked to translate {texts}")

    assert translated(name, content.encode(), never).decode() == content
