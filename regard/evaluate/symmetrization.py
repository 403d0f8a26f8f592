"""Symmetrization of word alignments in two directions by grow-diag-final-and (Och & Ney 2003; Koehn et al. 2005)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from regard.data.readers.text import Link

_NEIGHBOUR_OFFSETS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))


class _GrowingAlignment:
    """A growing set of links, and the aligned words."""

    def __init__(self, links: AbstractSet[Link]) -> None:
        self.links = set(links)
        self.sources = {source for source, _ in links}
        self.targets = {target for _, target in links}

    def add_link(self, link: Link) -> None:
        """Add a link and mark its words as aligned."""
        self.links.add(link)
        self.sources.add(link[0])
        self.targets.add(link[1])

    def count_unaligned_words(self, link: Link) -> int:
        """Return the number of a link's two words (0 to 2) that are not aligned yet."""
        return (link[0] not in self.sources) + (link[1] not in self.targets)


def grow_diag_final_and(forward: AbstractSet[Link], backward: AbstractSet[Link]) -> set[Link]:
    """Combine alignments: intersection, then neighbours in the union, then links between two unaligned words.

    A neighbour is added if it aligns a word that is still unaligned. Links grow in place, target word by target word,
    as in the pseudo-code of Koehn et al.
    """
    union, alignment = forward | backward, _GrowingAlignment(forward & backward)
    num_links_before = -1
    while num_links_before < len(alignment.links):
        num_links_before = len(alignment.links)
        for target, source in sorted((target, source) for source, target in union):
            if (source, target) in alignment.links:
                for source_offset, target_offset in _NEIGHBOUR_OFFSETS:
                    link = source + source_offset, target + target_offset
                    if link in union and link not in alignment.links and alignment.count_unaligned_words(link):
                        alignment.add_link(link)
    for direction in (forward, backward):
        for target, source in sorted((target, source) for source, target in direction):
            if alignment.count_unaligned_words((source, target)) == 2:
                alignment.add_link((source, target))
    return alignment.links
