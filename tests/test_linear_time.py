"""Running time of regular expressions and parsers on hostile input: four times the input, about four times the time.

Processor time is measured, so that other programs matter little; a measurement that fails is repeated.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import pytest
from support.archives import make_zip
from support.pumping import Pumped, has_possessive_group, pump

import regard
from regard.documents import DocumentError, translate_document
from regard.tokenizers.markup import remove_urls, unescape_html
from regard.tokenizers.segmentation import split_sentences
from regard.translate import markup, tag_projection

FACTOR = 4
MOST = 9.0  # times the time; quadratic growth is 16 times
METHODS = frozenset(("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"))
NAMESPACE = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
SEGMENT = '<mrk mtype="seg" mid="%">a</mrk>'
STYLED = '<w:r><w:rPr><w:b w:val="%"/></w:rPr><w:t>a b</w:t></w:r>'
CUE = "0:00:01,0 --> 0:00:02,0\n"


def measure(work: Callable[[], object]) -> float:
    """Return the processor time of the best of three calls; one is enough where it takes long."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(3):
            start = time.process_time()
            work()
            best = min(best, time.process_time() - start)
            if best > 0.2:
                break
    finally:
        gc.enable()
    return best


def grows_faster(work: Callable[[int], object], size: int) -> str:
    """Return the times for a size and four times the size where the second is too long in three trials, else nothing.

    Growth that fails is measured at four times the size as well: a single step (caches, allocation) is not quadratic.
    Times below a millisecond are not compared: quadratic work on a few thousand characters takes longer.
    """
    for _ in range(3):
        small, large = measure(lambda: work(size)), measure(lambda: work(FACTOR * size))
        if large <= max(MOST * small, 0.001) or measure(lambda: work(FACTOR**2 * size)) <= MOST * large:
            return ""
    return f"{small:.4f} s for {size:,}, {large:.4f} s for {FACTOR * size:,}"


# Regular expressions


@cache
def find_patterns() -> dict[str, tuple[re.Pattern[Any], frozenset[str]]]:
    """Return the compiled patterns in modules of regard by name, each with the methods that the package calls on it."""
    names: dict[re.Pattern[Any], str] = {}
    used: dict[re.Pattern[Any], set[str]] = {}
    for found in pkgutil.walk_packages(regard.__path__, "regard."):
        if found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError:  # Triton is not there without a GPU
            continue
        here = {name: value for name, value in vars(module).items() if isinstance(value, re.Pattern)}
        for name, pattern in here.items():
            names.setdefault(pattern, f"{found.name}.{name}")
        for node in ast.walk(ast.parse(inspect.getsource(module))) if here else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in here:
                used.setdefault(here[node.value.id], set()).add(node.attr)
    return {name: (pattern, METHODS & used.get(pattern, set()) or METHODS) for pattern, name in names.items()}


def apply_pumped(pattern: re.Pattern[Any], methods: frozenset[str], pumped: Pumped, size: int) -> None:
    """Search a text of a size in the ways in which a pattern is used."""
    text = pumped.build(size)
    content: Any = text if isinstance(pattern.pattern, str) else text.encode("utf-8", "replace")
    if methods - {"match", "fullmatch"}:
        for _ in pattern.finditer(content):
            pass
    if "match" in methods:
        pattern.match(content)
    if "fullmatch" in methods:
        pattern.fullmatch(content)


def find_slow_patterns(count: int, seed: int) -> list[str]:
    """Return a line for each pattern that takes too long; a short text is tried first, as growth may be exponential."""
    failed = []
    for name, (pattern, methods) in find_patterns().items():
        for pumped in pump(pattern, count, seed):
            apply_to = partial(apply_pumped, pattern, methods, pumped)
            if too_long := grows_faster(apply_to, 50) or grows_faster(apply_to, 1000):
                failed.append(f"{name} {tuple(pumped)!r}: {too_long}")
                break
    return failed


def test_regular_expressions_take_linear_time() -> None:
    assert len(find_patterns()) > 80
    assert not find_slow_patterns(count=2, seed=0)


def test_unquoted_attributes_before_a_slash_take_linear_time() -> None:
    assert not grows_faster(lambda size: markup.parse_markup("A " + "<a b=c/>" * (size // 8) + " b"), 4000)


def test_no_regular_expression_ends_in_a_system_error_of_python_3_11() -> None:
    assert not [name for name, (pattern, _) in find_patterns().items() if has_possessive_group(pattern)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_regular_expressions_take_linear_time_on_more_texts(seed: int) -> None:
    assert not find_slow_patterns(count=60, seed=seed)


# Documents


def docx(body: str, declared: str = "") -> bytes:
    document = f"<w:document {NAMESPACE}{declared}><w:body>{body}</w:body></w:document>"
    return make_zip({"[Content_Types].xml": "<Types/>", "word/document.xml": document})


def odt(body: str) -> bytes:
    document = f'<office xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0">{body}</office>'
    return make_zip({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": document})


def epub(body: str) -> bytes:
    return make_zip({"mimetype": "application/epub+zip", "a.xhtml": f"<html>{body}</html>"})


def xliff(inside: str) -> bytes:
    return f'<xliff version="1.2"><file><body>{inside}</body></file></xliff>'.encode()


def numbered(text: str, count: int) -> str:
    return "".join(text.replace("%", str(number)) for number in range(count))


BLANKS: dict[str, tuple[str, Callable[[int], bytes]]] = {  # each in the place of words
    ".txt": ("a.txt", lambda n: f"a{' ' * n}b".encode()),
    ".html": ("a.html", lambda n: f"<p>a{' ' * n}b</p>".encode()),
    ".html, attribute": ("a.html", lambda n: f"<p title='a{' ' * n}b'>".encode()),
    ".srt": ("a.srt", lambda n: f"{CUE}a{' ' * n}b".encode()),
    ".vtt": ("a.vtt", lambda n: f"WEBVTT\n\n{CUE.replace(',', '.')}a{' ' * n}b".encode()),
    ".po": ("a.po", lambda n: f'msgid "a{" " * n}b"\nmsgstr ""\n'.encode()),
    ".md": ("a.md", lambda n: f"# a{' ' * n}b".encode()),
    ".xliff": ("a.xliff", lambda n: xliff(f"<trans-unit><source>a{' ' * n}b</source></trans-unit>")),
    ".docx": ("a.docx", lambda n: docx(f"<w:p><w:r><w:t>a{' ' * n}b</w:t></w:r></w:p>")),
    ".odt": ("a.odt", lambda n: odt(f"<text:p>a{' ' * n}b</text:p>")),
    ".epub": ("a.epub", lambda n: epub(f"<p>a{' ' * n}b</p>")),
}
HOSTILE: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "html: attributes of one tag": ("a.html", lambda n: f"<b {'title=a ' * (n // 8)}>".encode()),
    "html: quotes": ("a.html", lambda n: b"<b a='\"" * (n // 7)),
    "html: ends of comments": ("a.html", lambda n: b"<!--->" * (n // 6)),
    "html: numbers without end": ("a.html", lambda n: b"x &#" + b"1" * n),
    "html: entities": ("a.html", lambda n: b"x &amp" * (n // 6)),
    "html: different entities": ("a.html", lambda n: b"x " + numbered("&#1%;", n // 7).encode()),
    "html: class attributes": ("a.html", lambda n: b'<p class="' + b" class=" * (n // 7)),
    "md: blanks behind a heading": ("a.md", lambda n: b"# a" + b" \t" * (n // 2) + b"{"),
    "md: list markers": ("a.md", lambda n: b"- " * (n // 2) + b"x"),
    "md: definitions": ("a.md", lambda n: b": " * (n // 2) + b"x"),
    "md: delimiters": ("a.md", lambda n: b"|a\n" + b" " * n + b"|"),
    "md: brackets with a definition": ("a.md", lambda n: b"[a]: b\n\n" + b"[" * (n // 2) + b"x" + b"]" * (n // 2)),
    "md: unfinished templates": ("a.md", lambda n: b"x {{ {% <!-- " * (n // 13)),
    "md: unfinished footnotes": ("a.md", lambda n: b"x [^" * (n // 4)),
    "md: unfinished commands": ("a.md", lambda n: rb"\a[" * (n // 3)),
    "md: unfinished links": ("a.md", lambda n: b"[a](" + b" " * n),
    "md: unfinished emoji": ("a.md", lambda n: b"x :" + b"a" * n),
    "md: blanks in a paragraph": ("a.md", lambda n: b"a" + b" " * n + b"b"),
    "md: different entities": ("a.md", lambda n: numbered("&#1%;", n // 7).encode()),
    "md: emphasis of one run": ("a.md", lambda n: b"a" + b"*" * n + b"b"),
    "xliff: segments": (
        "a.xliff",
        lambda n: xliff(
            f"<trans-unit><source>a</source><seg-source>{numbered(SEGMENT, n // 35)}</seg-source></trans-unit>"
        ),
    ),
    "docx: a run of many texts": (
        "a.docx",
        lambda n: docx(f'<w:p><w:r w:rsid="{"0" * n}">{"<w:t>a</w:t><w:tab/>" * (n // 20)}</w:r></w:p>'),
    ),
    "docx: namespaces": (
        "a.docx",
        lambda n: docx("<w:p xmlns:z='z'/>" * (n // 40), numbered(" xmlns:a%='b'", n // 40)),
    ),
    "docx: paragraphs": ("a.docx", lambda n: docx("<w:p/>" * (n // 6))),
    "docx: styles": (
        "a.docx",
        lambda n: docx(f"<w:p>{numbered(STYLED, n // 55)}</w:p>"),
    ),
    "srt: tags": ("a.srt", lambda n: (CUE + "x {\\ <i <v " * (n // 11)).encode()),
    "vtt: ends of tags": ("a.vtt", lambda n: ("WEBVTT\n\n" + CUE.replace(",", ".") + "A</b >" * (n // 6)).encode()),
    "po: messages": ("a.po", lambda n: numbered('msgid "a %"\nmsgstr ""\n\n', n // 24).encode()),
    "txt: addresses": ("a.txt", lambda n: b"www.," + b"a@a.a-" * (n // 6)),
}


def translate_hostile(name: str, content: bytes) -> None:
    with suppress(DocumentError):
        translate_document(name, content, lambda texts: [f"{text} c" for text in texts])


@pytest.mark.parametrize("case", BLANKS)
def test_runs_of_blanks_in_a_document_take_linear_time(case: str) -> None:
    name, build = BLANKS[case]
    assert not grows_faster(lambda size: translate_hostile(name, build(size)), 2000)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_document_takes_linear_time(case: str) -> None:
    name, build = HOSTILE[case]
    assert not grows_faster(lambda size: translate_hostile(name, build(size)), 2000)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*BLANKS, *HOSTILE])
def test_large_hostile_document_takes_linear_time(case: str) -> None:
    name, build = (BLANKS | HOSTILE)[case]
    assert not grows_faster(lambda size: translate_hostile(name, build(size)), 100_000)


# Texts

TEXTS = (
    " ",
    "<",
    "<b ",
    "<b a='",
    "<a><b></a>",
    "&",
    "&#",
    "&#1",
    "{",
    "%",
    "www.",
    "a@",
    "a.",
    "[X1",
    "<!--",
    "<![CDATA[",
    "<?",
    "<!x",
    "<script",
    "<script>",
    "></style><style",
    "<p>",
    "<br>",
    "a <b>b</b> ",
    '<b translate="no">',
    '<b class="notranslate">a</b> ',
    '<p translate="no">a</p><!--',
)


@pytest.mark.parametrize("repeated", TEXTS)
def test_tags_of_a_hostile_text_take_linear_time(repeated: str) -> None:
    assert not grows_faster(lambda size: markup.parse_markup("a" + repeated * (size // len(repeated))), 2000)
    assert not grows_faster(lambda size: remove_urls("a" + repeated * (size // len(repeated))), 2000)


@pytest.mark.parametrize("repeated", ["“ ", "' ", "`", "«a. ", "!)", "。", "你好。", "( ", "a. ", "a@", "Mr. "])
def test_sentences_of_a_hostile_text_are_split_in_linear_time(repeated: str) -> None:
    assert not grows_faster(lambda size: split_sentences(repeated * (size // len(repeated)), "en"), 8000)
    assert not grows_faster(lambda size: split_sentences(repeated * (size // len(repeated)), "zh"), 8000)


@pytest.mark.parametrize("repeated", ["x<b>y</b>", "<b>!</b> "])
def test_tags_in_one_long_word_are_placed_in_linear_time(repeated: str) -> None:
    def place(size: int) -> None:
        marked = markup.parse_markup("a" + repeated * (size // len(repeated)))
        plain = marked.blocks[0].plain_text
        links = [(number, number) for number in range(len(plain.split()))]
        tag_projection.restore_markup(marked, [f"{plain}."], [links])

    assert not grows_faster(place, 2000)


@pytest.mark.parametrize(
    ("source", "target"), [("<b>a</b> ", "- "), ("<b>a</b> ", "x "), ("<i><b>a</b> -</i> <br/> ", "- x ")]
)
def test_empty_pairs_are_filled_in_linear_time(source: str, target: str) -> None:
    def place(size: int) -> None:
        count = size // len(source)
        tag_projection.restore_markup(markup.parse_markup(source * count), [target * count], [[]])
        tag_projection.restore_markup(markup.parse_markup(f"x {source * count}"), [f"x {target * count}"], [[(0, 0)]])

    assert not grows_faster(place, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("repeated", TEXTS)
def test_tags_of_a_long_hostile_text_take_linear_time(repeated: str) -> None:
    assert not grows_faster(lambda size: markup.parse_markup("a" + repeated * (size // len(repeated))), 50_000)


def test_character_reference_of_thousands_of_digits_is_read() -> None:
    assert unescape_html(f"&#{'1' * 5000}; &#{'0' * 5000}65; &#x{'0' * 5000}41; &#0; &#;") == "\ufffd A A \ufffd &#;"
    assert markup.parse_markup(f"<b>a</b> &#{'1' * 5000};").blocks[0].plain_text == "a \ufffd"
    made = translate_document("a.html", f"<p>a &#{'1' * 5000}b</p>".encode(), lambda texts: [*texts])
    assert made == f"<p>a &#{'1' * 5000}b</p>".encode()
