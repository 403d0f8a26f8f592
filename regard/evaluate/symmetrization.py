"""Symmetrization of word alignments in two directions by grow-diag-final-and (Och & Ney 2003; Koehn et al. 2005)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from operator import itemgetter

from regard.data.readers.text import Link

_NEIGHBOUR_OFFSETS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))
_get_target_and_source = itemgetter(1, 0)


def grow_diag_final_and(forward: AbstractSet[Link], backward: AbstractSet[Link]) -> set[Link]:
    """Combine alignments: intersection, then neighbours in the union, then links between two unaligned words.

    A neighbour is added if it aligns a word that is still unaligned. Links grow in place, target word by target word,
    as in the pseudo-code of Koehn et al.
    """
    union, links = forward | backward, set(forward & backward)
    sources, targets = {source for source, _ in links}, {target for _, target in links}

    def count_unaligned_words(link: Link) -> int:
        return (link[0] not in sources) + (link[1] not in targets)

    def add_link(link: Link) -> None:
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    num_links_before = -1
    while num_links_before < len(links):
        num_links_before = len(links)
        for source, target in sorted(union, key=_get_target_and_source):
            if (source, target) in links:
                for source_offset, target_offset in _NEIGHBOUR_OFFSETS:
                    link = source + source_offset, target + target_offset
                    if link in union and link not in links and count_unaligned_words(link):
                        add_link(link)
    for direction in (forward, backward):
        for link in sorted(direction, key=_get_target_and_source):
            if count_unaligned_words(link) == 2:
                add_link(link)
    return links
