"""A file in XML whose paragraphs are passages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from regard.documents.draft import Draft
from regard.documents.encoding import Encoded
from regard.documents.passage import Passage
from regard.documents.tree import Element


def drafted(source: Encoded, root: Element, paragraphs: Iterable[Element], read: Callable[[Element], Passage]) -> Draft:
    """The file with this root; paragraphs come before those that they are in, and are written before them."""
    made = [(element, read(element)) for element in paragraphs if element.inside]
    spoken = [(element, passage) for element, passage in made if passage.text]

    def write(answers: Sequence[str]) -> bytes:
        for (element, passage), answer in zip(spoken, answers, strict=True):
            if answer not in ("", passage.text):
                element.fill(passage.write(answer))
        return source.bytes(root.source(), markup=True)

    return Draft([passage.text for _, passage in spoken], write)
