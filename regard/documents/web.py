"""HTML and XHTML: the text between two block tags is one passage, with the inline tags in it.

The file is cut into tags and text as a browser would; nothing is parsed into a tree and written anew, so what is no
text stays as it is, mistakes included.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from regard.documents.draft import Draft
from regard.documents.encoding import META, XML, Encoded, declared
from regard.documents.passage import DEEP, Node, Part, Passage
from regard.documents.spelling import ENTITY, escaped, in_a_line, make_spelling, meant, spoken, strict
from regard.documents.tree import TOKEN as XML_TOKEN
from regard.documents.tree import checked


def names(listed: str) -> frozenset[str]:
    """Words as a set."""
    return frozenset(listed.split())


# Every alternative reaches its end or the file's, so that no file makes the search start over and over.
TOKEN = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))"
    r"|<[!?][^>]*(?:>|\Z)"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*)"
    r"""(?:[^>"'=]++|=\s*+(?:"[^"]*+"|'[^']*+')|[="'])*+(?:>|\Z)"""
    r"|(?P<text>(?:[^<]++|<(?![A-Za-z!?]|/[A-Za-z]))++)",
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"""(?P<name>[^\s"'<>/=]++)(?:\s*=\s*(?P<value>"[^"]*"|'[^']*'|[^\s"'>]+))?""")
UNQUOTED = re.compile(r"""[^\s"'=<>`]+(?<!/)""")
READ = names("alt title placeholder")
INLINE = names(
    "a abbr acronym b bdi bdo big br cite data del dfn em font i img input ins kbd label mark nobr q rb rp rt ruby s "
    "samp small span strike strong sub sup time tt u var wbr code svg math"
)
SEPARATING = names("br img input hr")
VOID = names("area base br col embed hr img input link meta param source track wbr")
RAW = names("script style textarea title iframe noembed noframes xmp plaintext")  # there are no tags inside
OPAQUE = names("script style code pre textarea iframe noembed noframes xmp plaintext svg math docauthor")
UNREAD = OPAQUE | names("link meta")  # a link's title is a name
KEPT = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:"[^"]*|'[^']*)\bnotranslate\b""", re.IGNORECASE)


@dataclass
class Token:
    """A tag, a stretch of text, or something else."""

    source: str
    name: str = ""  # of a tag
    closes: bool = False
    alone: bool = False
    text: str = ""  # as strict markup has it

    @property
    def opaque(self) -> bool:
        """Whether it begins something that is not translated."""
        opens = bool(self.name) and not self.closes and not self.alone
        return opens and (self.name in OPAQUE or bool(KEPT.search(self.source)))

    @property
    def inline(self) -> bool:
        """Whether it stands among words."""
        return not self.name or self.name in INLINE

    def node(self) -> Node:
        """What it is in a passage."""
        if self.text:
            return Node(self.text)
        half = "" if self.alone else self.name
        part = Part(None, lambda: self.source)
        return Node(opening=[part], half=half, opens=not self.closes, separates=self.name in SEPARATING)


class Attribute(NamedTuple):
    """An attribute that people read: its place in a tag with its quotes, and its text."""

    token: Token
    start: int
    end: int
    text: str

    def value(self, answer: str) -> str:
        """The translation as the tag has it."""
        written = self.token.source[self.start : self.end]
        if answer in ("", self.text):
            return written
        inside = written[1:-1] if written[0] in "\"'" else written
        value = make_spelling(inside, ENTITY.findall(self.text))(in_a_line(answer))
        if written[0] == "'":
            return "'" + value.replace("'", "&#39;") + "'"
        if written[0] == '"' or not UNQUOTED.fullmatch(value):
            return '"' + value.replace('"', "&quot;") + '"'
        return value


def fill(attributes: Sequence[tuple[Attribute, str]]) -> None:
    """Write the translations of the attributes of one tag into it."""
    token = attributes[0][0].token
    made, place = [], 0
    for attribute, answer in attributes:
        made += [token.source[place : attribute.start], attribute.value(answer)]
        place = attribute.end
    token.source = "".join(made) + token.source[place:]


def draft(content: bytes) -> Draft:
    """An HTML file."""
    source = declared(content, META)
    return drafted(source, tokens(source.text))


def strict_draft(content: bytes) -> Draft:
    """An XHTML file, or another one in XML whose text is between its tags."""
    source = declared(content, XML)
    checked(source.text)
    return drafted(source, xml_tokens(source.text))


def drafted(source: Encoded, cut: Iterable[Token]) -> Draft:
    """A file that is cut into tokens."""
    stretches = list(parted(cut))
    attributes = [found for stretch in stretches for token in stretch for found in named(token)]
    spoken = {
        place: Passage(token.node() for token in stretch)
        for place, stretch in enumerate(stretches)
        if any(token.text.strip() for token in stretch)
    }
    passages = {place: passage for place, passage in spoken.items() if passage.text}

    def write(answers: Sequence[str]) -> bytes:
        filled = zip(attributes, answers[: len(attributes)], strict=True)
        for _, group in groupby(filled, key=lambda pair: id(pair[0].token)):
            fill(list(group))
        out = ["".join(token.source for token in stretch) for stretch in stretches]
        for (place, passage), answer in zip(passages.items(), answers[len(attributes) :], strict=True):
            if answer not in ("", passage.text):
                words = (token.source for token in stretches[place] if token.text)
                written = "".join(source for source in words if not source.startswith("<![CDATA["))
                out[place] = passage.write(answer, make_spelling(written, ENTITY.findall(passage.text)))
        return source.bytes("".join(out), markup=True)

    return Draft([*(one.text for one in attributes), *(passage.text for passage in passages.values())], write)


def tokens(source: str) -> Iterator[Token]:
    """An HTML file, piece by piece."""
    place = 0
    while found := TOKEN.match(source, place):
        place = found.end()
        name = (found["name"] or "").lower()
        if found["text"]:
            yield Token(found[0], text=strict(found[0]))
            continue
        yield Token(found[0], name, bool(found["close"]), name in VOID)
        if name in RAW and not found["close"]:
            end = re.compile(rf"</{name}(?=[\s/>])|\Z", re.IGNORECASE).search(source, place)
            stop = end.start() if end else len(source)
            if stop > place:
                yield Token(source[place:stop], text=strict(source[place:stop]) if name == "title" else "")
            place = stop


def xml_tokens(source: str) -> Iterator[Token]:
    """An XML file, piece by piece; it has been checked."""
    place = 0
    while found := XML_TOKEN.match(source, place):
        place = found.end()
        if found["text"]:
            yield Token(found[0], text=found[0])
        elif found["data"]:
            yield Token(found[0], text=escaped(found["data"]))
        else:
            name = (found["name"] or "").rpartition(":")[2].lower()
            yield Token(found[0], name, bool(found["close"]), found[0].endswith("/>"))


def parted(cut: Iterable[Token]) -> Iterator[list[Token]]:
    """Stretches of inline tokens, and everything between them."""
    stretch: list[Token] = []
    for token in closed(iter(cut)):
        if token.inline:
            stretch.append(token)
        else:
            yield from balanced(stretch)
            yield [token]
            stretch = []
    yield from balanced(stretch)


def balanced(stretch: Sequence[Token]) -> Iterator[list[Token]]:
    """A stretch, cut at each tag whose other half is outside: among moving words, halves could pass each other."""
    place = 0
    for bound in sorted(bounds(stretch)):
        yield list(stretch[place:bound])
        yield [stretch[bound]]
        place = bound + 1
    yield list(stretch[place:])


def bounds(stretch: Sequence[Token]) -> set[int]:
    """The places of tags that have no other half in a stretch, cross others, are too deep, or go around such a one."""
    found: set[int] = set()
    opened: list[int] = []
    names: Counter[str] = Counter()
    last = -1
    for place, token in enumerate(stretch):
        if not token.name or token.alone:
            continue
        if not token.closes:
            opened.append(place)
            names[token.name] += 1
        elif not names[token.name]:
            found.add(place)
            last = place
        else:
            inner, deep = set(), len(opened) > DEEP
            while stretch[start := opened.pop()].name != token.name:
                names[stretch[start].name] -= 1
                inner.add(start)
            names[token.name] -= 1
            if inner or deep or last > start:
                found.update(inner, (start, place))
                last = place
    return found | set(opened)


def closed(cut: Iterator[Token]) -> Iterator[Token]:
    """The tokens, where all of what is not translated is one."""
    for token in cut:
        if not token.opaque:
            yield token
            continue
        pieces, depth = [token.source], 1
        while depth and (following := next(cut, None)):
            pieces.append(following.source)
            if following.name == token.name and not following.alone:
                depth += -1 if following.closes else 1
        yield Token("".join(pieces), "" if token.inline else token.name, alone=True)


def named(token: Token) -> Iterator[Attribute]:
    """The attributes of a tag that people read."""
    if token.closes or not token.name or token.name in UNREAD:
        return
    for found in ATTRIBUTE.finditer(token.source, len(token.name) + 1):
        value = found["value"]
        if value and found["name"].lower() in READ:
            text = strict(value[1:-1] if value[0] in "\"'" else value)
            if spoken(meant(text)):
                yield Attribute(token, *found.span("value"), in_a_line(text))
