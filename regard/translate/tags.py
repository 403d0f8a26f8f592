"""Inline tags, placeholders and addresses: taken out before translating, put back by the alignment, always balanced.

`<b>…</b>` goes around what the words inside it were translated to; `<br/>`, `{name}`, `%d` and `www.example.org` go
where the word beside them went. Block tags (`<p>`, `<li>`) part a text into pieces that are translated one by one;
comments, declarations, scripts and the like are left as they are. A text without tags is text; one with tags is markup,
and its entities are read and written as such.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from regard.evaluate import Link
from regard.text.addresses import ADDRESS

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
    r"|%%|%(?:\d++\$|\(\w++\))?[-+ #0]*+(?:\d++|\*)?+(?:\.(?:\d++|\*))?+(?:hh?|ll?|[Lzjt])?"
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
WORD = re.compile(r"\S+")
AHEAD = 50  # characters behind an address that may be taken for a part of it
COVERED = 1 / 3  # of the source's words, at least, have a link in an alignment that can place tags
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
    written = {html.unescape(entity): entity for entity in ENTITY.findall(text) if html.unescape(entity) != entity}
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
    return html.unescape(text) if markup else text


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


def restore(marked: Marked, translated: Sequence[str], links: Sequence[Sequence[Link]]) -> str:
    """The translations of the pieces with the tags where their words went, and what was between them."""
    out = marked.breaks[0]
    for piece, text, some, after in zip(marked.pieces, translated, links, marked.breaks[1:], strict=True):
        out += written(carried(piece, text, some), text, 0, len(text), marked.entities) + after
    return out


def carried(piece: Inline, text: str, links: Sequence[Link]) -> list[Node]:
    """The tags of a piece with places in its translation."""
    carrier = Carrier(Words(piece.plain), Words(text), links)
    if len(carrier.linked) < COVERED * len(carrier.source.spans) and carrier.count_unaligned(piece.tags):
        return place_around_sentence(piece.tags, 0, 0, len(text))
    return carrier.all(piece.tags, 0, len(text))


def count_unaligned(piece: Inline, links: Sequence[Link]) -> int:
    """Count the pairs of tags around words none of which has a link."""
    return Carrier(Words(piece.plain), Words(""), links).count_unaligned(piece.tags)


def place_around_sentence(nodes: Sequence[Node], source_low: int, low: int, high: int) -> list[Node]:
    """Put tags around a stretch of a translation in their order: the pair with most of the source goes around it.

    Those before that pair stay before the stretch, those after it behind it. No pair gets into another one.
    """
    pairs = [node for node in nodes if not node.alone and node.end > node.start]
    longest = max(pairs, key=lambda node: node.end - node.start, default=None)
    made: list[Node] = []
    passed = False
    for node in nodes:
        passed |= node is longest or (longest is None and node.start > source_low)
        start, end = (low, high) if node is longest else (high, high) if passed else (low, low)
        inside = place_around_sentence(node.inside, node.start, start, end)
        made.append(Node(node.opening, start, node.closing, end, node.spaced, node.tight, inside))
    return made


Side = Literal["start", "end"]


class Words:
    """The words of a text with their places: a word may have marks of punctuation before and after its core."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spans = [found.span() for found in WORD.finditer(text)]
        self.starts = [start for start, _ in self.spans]

    def marks(self, word: int) -> tuple[int, int]:
        """How many characters at a word's beginning, and at its end, are neither letters nor digits."""
        start, end = self.spans[word]
        letters = [place for place in range(start, end) if self.text[place].isalnum()]
        return (letters[0] - start, end - 1 - letters[-1]) if letters else (end - start, 0)

    def touched(self, start: int, end: int) -> range:
        """The words that a stretch of text has a part of."""
        first = bisect_right(self.starts, start) - 1
        if first < 0 or self.spans[first][1] <= start:
            first += 1
        return range(first, max(first, bisect_left(self.starts, end)))


class Carrier:
    """Tags with places in the source become tags with places in the target."""

    def __init__(self, source: Words, target: Words, links: Sequence[Link]) -> None:
        self.source = source
        self.target = target
        self.to: dict[int, list[int]] = {}
        for left, right in links:
            self.to.setdefault(left, []).append(right)
        self.linked = sorted(self.to)

    def count_unaligned(self, nodes: Sequence[Node]) -> int:
        """Count the pairs around words none of which has a link."""
        count = 0
        for node in nodes:
            words = [] if node.alone else self.source.touched(node.start, node.end)
            count += bool(words) and not any(word in self.to for word in words)
            count += self.count_unaligned(node.inside)
        return count

    def all(self, nodes: Sequence[Node], low: int, high: int) -> list[Node]:
        """Neighbours, within their parent's bounds, none reaching into another."""
        moved = [self.moved(node, low, high) for node in nodes]
        order = sorted(range(len(nodes)), key=lambda place: (moved[place].start, moved[place].end))
        reached = low
        for place in order:
            node = moved[place]
            node.start = max(node.start, reached)
            reached = node.end = max(node.end, node.start)
            node.inside = self.all(nodes[place].inside, node.start, node.end)
        return [moved[place] for place in order]

    def moved(self, node: Node, low: int, high: int) -> Node:
        """One tag, without what is inside it."""
        start, end = (self.beside(node.start),) * 2 if node.alone else self.around(node.start, node.end)
        start = min(max(start, low), high)
        return Node(node.opening, start, node.closing, min(max(end, start), high), node.spaced, node.tight)

    def around(self, start: int, end: int) -> tuple[int, int]:
        """Around what the words of a stretch were translated to; an empty one stays beside its neighbour."""
        words = self.source.touched(start, end)
        reached = [right for word in words for right in self.to.get(word, ())]
        if not reached:
            return (self.beside(start),) * 2
        return self.at(words[0], start, min(reached), "start"), self.at(words[-1], end, max(reached), "end")

    def at(self, word: int, place: int, became: int, side: Side) -> int:
        """Where a place in or beside a source word is in the target word that it became.

        Among marks of punctuation it keeps its distance from the word's edge; inside the letters it is at their edge.
        """
        (start, end), (left, right) = self.source.spans[word], self.target.spans[became]
        if self.source.text[start:end] == self.target.text[left:right]:
            return left + min(max(place - start, 0), end - start)
        (before, after), (target_before, target_after) = self.source.marks(word), self.target.marks(became)
        if side == "start" or (before and place - start <= before < end - start):
            inside = before and place - start < before
            return left + (min(max(place - start, 0), target_before) if inside else target_before)
        inside = after and end - place < after
        return right - (min(max(end - place, 0), target_after) if inside else target_after)

    def beside(self, place: int) -> int:
        """Where a place in the source is in the target: before what its next word became, or after its last one."""
        before = bisect_left(self.source.starts, place) - 1  # the last word that begins before it
        glued = before >= 0 and place <= self.source.spans[before][1]
        if not glued:
            following = bisect_left(self.linked, before + 1)
            if following < len(self.linked):
                word = self.linked[following]
                return self.target.spans[min(self.to[word])][0]
        earlier = bisect_right(self.linked, before) - 1
        if earlier >= 0:
            word = self.linked[earlier]
            return self.at(word, min(place, self.source.spans[word][1]), max(self.to[word]), "end")
        return len(self.target.text) if before >= 0 else 0


def written(nodes: Sequence[Node], text: str, low: int, high: int, entities: Mapping[str, str] | None) -> str:
    """A stretch of text with tags in it."""
    out, place, last = "", low, ""
    for node in nodes:
        between = shown(text[place : node.start], entities)
        out += between
        always = SEPARATING.match(node.opening)
        if node.tight[0] and out.endswith(" ") and (always or SENTENCE_END.search(out[-AHEAD:-1])):
            out = out[:-1]
        if node.alone:
            left, right = node.spaced
            following = text[node.start : node.start + AHEAD]
            glued_left, glued_right = glued(out[-1:] if between else last, node.opening, following)
            space_left = " " if (left and out and not out[-1].isspace()) or glued_left else ""
            space_right = " " if (right and begins(following[:1])) or glued_right else ""
            last = node.opening + space_right
            out += space_left + last
        else:
            out += node.opening + written(node.inside, text, node.start, node.end, entities) + node.closing
            last = node.closing
        place = node.end
        follows = node.tight[1] and place < high and text[place] == " "
        if follows and (always or SENTENCE_END.search(text[max(place - AHEAD, 0) : place])):
            place += 1
    return out + shown(text[place:high], entities)


def begins(character: str) -> bool:
    """Whether a word may begin with it, or something else that stands apart from what is before it."""
    return character.isalnum() or (character != "" and character in "<{%$#&(")


def glued(before: str, mark: str, after: str) -> tuple[bool, bool]:
    """Whether a mark is an address that would become another by what stands on its left, or on its right."""
    if not ADDRESS.fullmatch(mark):
        return False, False
    right = ADDRESS.match(mark + after)
    return ADDRESS.findall(before + mark) != [*ADDRESS.findall(before), mark], right is None or right[0] != mark


def shown(text: str, entities: Mapping[str, str] | None) -> str:
    """Text as its markup writes it."""
    return text if entities is None else "".join(entities.get(character, character) for character in text)
