"""URLs and e-mail addresses: removed before translation and restored unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.documents import translate_document
from regard.tokenizers.markup import URL_OR_PLACEHOLDER, remove_urls
from regard.translate import markup
from regard.translate.protected_spans import protect_markup, protect_urls
from regard.translate.translation import Alignment, Translation

ADDRESSES = [
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
    "[X7X]",  # a placeholder of Weblate
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("around", ["{}", "see {}.", "({})", "“{}”,", "<{}>", "at {}: yes", "请看{}。好", "[x]({})"])
def test_address_is_found_without_surrounding_punctuation(address: str, around: str) -> None:
    assert URL_OR_PLACEHOLDER.findall(around.format(address)) == [address]


@pytest.mark.parametrize(
    "text", ["example.org", "e.g. this", "and/or", "a@b", "@name", "12:30", "x://", "http://", "www.", "a.b@", "C://"]
)
def test_ordinary_words_are_not_addresses(text: str) -> None:
    assert remove_urls(text) == text


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
    ids=[
        "letters",
        "at signs",
        "domain labels",
        "schemes and brackets",
        "tags and letters",
        "tags",
        "dots",
        "hyphens",
    ],
)
def test_long_text_of_unfinished_addresses_has_no_address_and_is_kept(text: str) -> None:
    assert not URL_OR_PLACEHOLDER.findall(text)
    plain = "".join(piece.plain_text for piece in markup.parse_markup(text).blocks)
    assert plain.replace(" ", "") == text.replace("<a>", "")  # spaces replace tags between words


def translate_reversed(plain: str) -> Translation:
    """Return a translation with the words of the source in reverse order."""
    words = plain.split()
    soft = np.eye(len(words), dtype=np.float32)[::-1]
    links = [(index, len(words) - 1 - index) for index in range(len(words))]
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
def test_addresses_are_removed_before_translation_and_restored(text: str, sent: list[str], expected: str) -> None:
    carried = protect_urls(text)
    assert [plain.strip() for plain in carried.translatable_texts] == sent
    made = carried.restore([translate_reversed(plain) for plain in carried.translatable_texts])
    assert (made.source, made.text) == (text, expected)


WORDS = st.sampled_from(
    ["dog", "old,", "(a", "b)", "no.", "-", *ADDRESSES, "(https://x.org)", "me@x.org,", "<https://x.org>"]
)
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from([" ", "  ", "\n", " \r\n", "\t"]))).map(
    lambda pairs: "".join(word + space for word, space in pairs) + "www.example.org"
)


@given(TEXTS)
def test_any_text_keeps_its_addresses_lines_and_alignment(text: str) -> None:
    carried = protect_urls(text)
    assert not any(URL_OR_PLACEHOLDER.search(plain) for plain in carried.translatable_texts)
    made = carried.restore([translate_reversed(plain) for plain in carried.translatable_texts])
    assert sorted(URL_OR_PLACEHOLDER.findall(made.text)) == sorted(URL_OR_PLACEHOLDER.findall(text))
    assert sorted("".join(made.text.split())) == sorted("".join(text.split()))
    assert len(made.text.splitlines()) == len(text.splitlines())
    if made.alignment is not None:
        assert (made.alignment.source, made.alignment.target) == (text.split(), made.text.split())
        for source, target in made.alignment.pairs:
            left, right = (
                URL_OR_PLACEHOLDER.search(text.split()[source]),
                URL_OR_PLACEHOLDER.search(made.text.split()[target]),
            )
            assert (left and left[0]) == (right and right[0])


@given(TEXTS)
def test_addresses_are_restored_without_an_alignment(text: str) -> None:
    for carried in (protect_urls(text), protect_markup(text.replace("<", "("))):
        made = carried.restore([Translation(plain, "ein Hund") for plain in carried.translatable_texts])
        assert sorted(URL_OR_PLACEHOLDER.findall(made.text)) == sorted(URL_OR_PLACEHOLDER.findall(made.source))


def test_addresses_moved_next_to_each_other_stay_separate() -> None:
    carried = protect_urls("see https://a.org (https://b.org)")
    made = carried.restore([Translation(plain, "sieh") for plain in carried.translatable_texts])
    assert URL_OR_PLACEHOLDER.findall(made.text) == ["https://a.org", "https://b.org"]


def test_address_in_markup_keeps_its_escaped_form() -> None:
    text = "<p>see <b>https://a.org/?x=1&amp;y=2</b> &lt;me@a.org&gt; now</p><p>www.a.org</p>"
    carried = protect_markup(text)
    assert [plain.split() for plain in carried.translatable_texts] == [["see", "<>", "now"]]
    made = carried.restore([translate_reversed(plain) for plain in carried.translatable_texts])
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
def test_link_whose_text_is_its_address_is_kept_whole(link: str) -> None:
    carried = protect_markup(f"see {link} now, {link}.")
    assert carried.translatable_texts == ["see now,."]
    made = carried.restore([Translation("see now,.", "jetzt, sieh.")])
    assert made.text == f"jetzt, sieh. {link} {link}"
    assert protect_markup(f"<p>{link}</p>").translatable_texts == []


def test_tags_around_addresses_and_words_follow_the_words() -> None:
    carried = protect_markup("<b><b>see</b> www.a.org</b> <i>now</i> <i><i>www.b.org</i></i>")
    assert [plain.split() for plain in carried.translatable_texts] == [["see", "now"]]
    made = carried.restore([translate_reversed(plain) for plain in carried.translatable_texts])
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
def test_document_texts_that_are_addresses_are_not_translated(name: str, content: str) -> None:
    def fail_if_called(texts: object) -> list[str]:
        raise AssertionError(f"unexpected texts to translate: {texts}")

    assert translate_document(name, content.encode(), fail_if_called).decode() == content
