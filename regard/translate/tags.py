"""Inline tags, placeholders and addresses: taken out before translating, put back by the alignment, always balanced.

`<b>…</b>` goes around what the words inside it were translated to; `<br/>`, `{name}`, `%d` and `www.example.org` go
where the word beside them went. Block tags (`<p>`, `<li>`) part a text into pieces that are translated one by one;
comments, declarations, scripts and the like are left as they are. A text without tags is text; one with tags is markup,
and its entities are read and written as such. `tag_placement` puts the tags back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.text.addresses import ADDRESS
from regard.text.entities import unescape

ATTRIBUTES = r"""(?:\s+[\w:.@-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*\s*"""
TAG = re.compile(rf"<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]*){ATTRIBUTES}(?P<alone>/?)>")
OPAQUE = {  # what is left as it is: how it begins, and how each part of it ends
    "comment": (r"<!--", ("-->",)),
    "data": (r"<!\[CDATA\[", (r"\]\]>",)),
    "instruction": (r"<\?", (r"\?>",)),
    "declaration": (r"<![A-Za-z]", (">",)),
    "program": (r"<(?:script|style)\b", (">", r"</(?:script|style)\s*+>")),
}
BLOCKS = (
    "address article aside blockquote body caption dd details div dl dt fieldset figcaption figure footer form h[1-6] "
    "head header hr html legend li main nav ol option p pre section select summary table tbody td tfoot th thead title "
    "tr ul"
).replace(" ", "|")
BEFORE = r"(?:(?<!\s)\s++)?"  # white space from its beginning on: where it begins elsewhere, nothing is tried twice
BLOCK = rf"</?(?:{BLOCKS})(?![\w.:-]){ATTRIBUTES}/?>"
OPAQUES = "|".join(f"(?P<{kind}>{beginning})" for kind, (beginning, _) in OPAQUE.items())
PARTING = re.compile(rf"{BEFORE}(?:{OPAQUES}|{BLOCK})", re.IGNORECASE)
SPACE = re.compile(r"\s*+")
PLACEHOLDER = re.compile(
    r"\{\{[^{}]*\}\}|[$%#]\{[^{}]*\}|\{[^{}\n]{0,60}\}"
    r"|%%|%(?:\d++\$|\(\w++\))?(?:(?<!\d%)(?<!\d[ \xa0\u202f]%)[-+ #0]*+|[-+#0]*+)"  # not "10 % d'eau"
    r"(?:\d++|\*)?+(?:\.(?:\d++|\*))?+(?:hh?|ll?|[Lzjt])?"
    r"[sdifgGeExXucopa@](?![^\W\d_])"
)
MARK = re.compile(f"{TAG.pattern}|(?i:{ADDRESS.pattern})|{PLACEHOLDER.pattern}")
ANY_TAG = re.compile(rf"</?[A-Za-z][\w.:-]*{ATTRIBUTES}/?>")
LINK = re.compile(
    rf"<(?P<around>[A-Za-z][\w.:-]*){ATTRIBUTES}>(?:{ANY_TAG.pattern}|[^\s<>]++){{0,20}}?</(?P=around)\s*>"
)
ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")
VOID = frozenset(("area", "base", "br", "col", "embed", "img", "input", "link", "meta", "source", "track", "wbr"))
TAGS = re.compile(rf"(?=<)(?P<closing>(?:</[A-Za-z][\w.:-]*\s*>)*+)(?:{ANY_TAG.pattern})*+")
SEPARATING = re.compile(r"<(?:br|img|tab)(?![\w.:-])", re.IGNORECASE)  # they separate words without a space
SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*\Z")
SENTENCE_START = re.compile(r"[\"'“‘„«¿¡(\[]*(\w)")
AHEAD = 50  # characters behind an address that may be taken for a part of it
DEEP = 100  # tags inside each other; what is deeper stands alone


@dataclass
class Node:
    """A tag with what is inside it, or one that stands alone; positions are places in the plain text."""

    opening: str
    start: int
    closing: str = ""
    end: int = 0
    spaced: tuple[bool, bool] = (False, False)  # alone: whether white space stood on its left, on its right
    tight: tuple[bool, bool] = (False, False)  # left, right: the plain text has a space here that the source has not
    inside: list[Node] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether there is nothing to go around."""
        return not self.closing


class Inline(NamedTuple):
    """A piece of text without its tags, and the tags."""

    plain: str
    tags: list[Node]


class Marked(NamedTuple):
    """A text in pieces: one more break than pieces, the first before the first and the last after the last."""

    pieces: list[Inline]
    breaks: list[str]
    entities: Mapping[str, str] | None  # how characters are written in this markup; None: it is no markup


def parse(text: str) -> Marked:
    """Takes the tags out."""
    written = {unescape(entity): entity for entity in ENTITY.findall(text) if unescape(entity) != entity}
    between = list(partings(text))
    markup = bool(written or between or TAG.search(text))
    pieces, breaks, place = [], [""], 0
    for start, end in [*between, (len(text), len(text))]:
        piece = inline(text[place:start], markup)
        if worded(piece):
            pieces.append(piece)
            breaks.append(text[start:end])
        else:
            breaks[-1] += text[place:end]
        place = end
    return Marked(pieces, breaks, {**written, "&": "&amp;", "<": "&lt;", ">": "&gt;"} if markup else None)


def worded(piece: Inline) -> bool:
    """Whether there is anything to translate: what stands beside tags, and is no more than marks, is not."""
    return any(map(str.isalnum, piece.plain)) if piece.tags else bool(piece.plain)


def partings(text: str) -> Iterator[tuple[int, int]]:
    """Where something parts the text, white space around it included: block tags, and what is left as it is."""
    ends, place = Ends(text), 0
    while found := PARTING.search(text, place):
        place = found.end()
        end = ends.all(OPAQUE[found.lastgroup][1], place) if found.lastgroup else place
        if end is not None:
            space = SPACE.match(text, end)
            place = space.end() if space else end
            yield found.start(), place


class Ends:
    """Where things end in a text: looked for once, not anew from every place where something seems to begin."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.known: dict[str, tuple[int, re.Match[str] | None]] = {}  # from which place on, and what was found

    def all(self, endings: Iterable[str], place: int) -> int | None:
        """The end of what ends in these ways, one after the other, from a place on; None where it does not."""
        end: int | None = place
        for ending in endings:
            end = None if end is None else self.after(ending, end)
        return end

    def after(self, ending: str, place: int) -> int | None:
        """The end of the first such ending from a place on; None where there is none."""
        since, found = self.known.get(ending, (len(self.text) + 1, None))
        if since > place or (found and found.start() < place):
            found = self.look(ending, place)
            self.known[ending] = place, found
        return found.end() if found else None

    def look(self, ending: str, place: int) -> re.Match[str] | None:
        """The first such ending from a place on."""
        return re.compile(ending, re.IGNORECASE).search(self.text, place)


def inline(text: str, markup: bool, mark: re.Pattern[str] = MARK) -> Inline:
    """A piece without block tags; `mark` is what is taken out."""
    root = Node("", 0, " ")
    stack, plain, place = [root], "", 0
    spaceless = find_tight_positions(text) if markup else frozenset()
    while found := mark.search(text, place):
        found = linked(text, found)
        plain += read(text[place : found.start()], markup)
        place = found.end()
        tight = found.start() in spaceless, place in spaceless
        if tight[0] and not plain[-1:].isspace():
            plain += " "
        groups = found.groupdict()
        name = (groups.get("name") or "").lower()
        if groups.get("close"):
            close(stack, found[0], name, len(plain), tight[1])
            plain += " " if tight[1] else ""
        elif name and not groups["alone"] and name not in VOID and len(stack) <= DEEP:
            node = Node(found[0], len(plain), "?", tight=(tight[0], False))
            stack[-1].inside.append(node)
            stack.append(node)
        else:
            before, after = text[found.start() - 1 : found.start()], text[place : place + 1]
            had = len(plain)
            plain = lone(stack[-1], found[0], plain, before, after)
            stack[-1].inside[-1].tight = tight[0], tight[0]
            if len(plain) < had:
                within(root.inside, len(plain))
            place += after.isspace() and (not plain or plain[-1].isspace())  # of two spaces one is left
    for node in stack[1:]:  # never closed: stands alone
        node.closing = ""
    return Inline(plain + read(text[place:], markup), hoisted(root.inside))


def find_tight_positions(text: str) -> frozenset[int]:
    """Find the places where tags alone stand between two sentences, or a line break or an image between two words.

    The model gets a space there. It belongs behind closing tags and before all others.
    """
    found: set[int] = set()
    for tags in TAGS.finditer(text):
        before, after = text[max(tags.start() - AHEAD, 0) : tags.start()], text[tags.end() : tags.end() + AHEAD]
        first = SENTENCE_START.match(after)
        if not tags[0] or not first or not before or before[-1].isspace():
            continue
        if SEPARATING.search(tags[0]) or (first[1].isupper() and SENTENCE_END.search(before)):
            found.add(tags.end("closing"))
    return frozenset(found)


def linked(text: str, found: re.Match[str]) -> re.Match[str]:
    """The element that begins with a mark, where all that it says is an address; else the mark."""
    link = LINK.match(text, found.start())
    inside = ANY_TAG.findall(link[0]) if link else []
    balanced = 2 * sum(tag.startswith("</") for tag in inside) == len(inside)
    return link if link and balanced and ADDRESS.fullmatch(ANY_TAG.sub("", link[0])) else found


def read(text: str, markup: bool) -> str:
    """Text as it is meant."""
    return unescape(text) if markup else text


def close(stack: list[Node], written: str, name: str, place: int, tight: bool) -> None:
    """Ends the innermost open tag of that name; without one, the closing tag stands alone."""
    for depth in range(len(stack) - 1, 0, -1):
        found = TAG.fullmatch(stack[depth].opening)
        if found and found["name"].lower() == name:
            for node in stack[depth + 1 :]:
                node.closing = ""
            ended = stack[depth]
            ended.closing, ended.end, ended.tight = written, place, (ended.tight[0], tight)
            del stack[depth:]
            return
    stack[-1].inside.append(Node(written, place))


def lone(parent: Node, written: str, plain: str, before: str, after: str) -> str:
    """Adds what stands alone, and gives the text before it as it goes on without it."""
    spaced = before.isspace(), after.isspace()
    ends = not (after.isspace() or begins(after))
    if plain[-1:].isspace() and ends:
        plain = plain[:-1]  # the mark behind it, or the end, goes with the word before
    elif plain[-1:].isalnum() and after.isalnum():
        plain += " "
    parent.inside.append(Node(written, len(plain), spaced=spaced))
    return plain


def within(nodes: Sequence[Node], end: int) -> None:
    """Keeps places inside a text that has lost a space at its end."""
    for node in reversed(nodes):
        inside = node.start < end
        node.start, node.end = min(node.start, end), min(node.end, end)
        within(node.inside, end)
        if inside:  # those before it ended where it began
            return


def hoisted(nodes: Iterable[Node]) -> list[Node]:
    """The same tags, where one that was never closed holds nothing: what was inside it comes after it."""
    made: list[Node] = []
    for node in nodes:
        inside = hoisted(node.inside)
        if node.alone:
            node.inside = []
            made += [node, *inside]
        else:
            node.inside = inside
            made.append(node)
    return made


def begins(character: str) -> bool:
    """Whether a word may begin with it, or something else that stands apart from what is before it."""
    return character.isalnum() or (character != "" and character in "<{%$#&(")
