"""Two alignments of one pair, made in the two directions, as one (Och & Ney 2003; Koehn et al. 2005)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from regard.data.sentence_pair import Link

_NEIGHBOUR_OFFSETS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))


class _GrowingAlignment:
    """Links that grow, and the words that have one."""

    def __init__(self, links: AbstractSet[Link]) -> None:
        self.links = set(links)
        self.sources = {source for source, _ in links}
        self.targets = {target for _, target in links}

    def add_link(self, link: Link) -> None:
        """One more."""
        self.links.add(link)
        self.sources.add(link[0])
        self.targets.add(link[1])

    def count_unaligned_words(self, link: Link) -> int:
        """How many of a link's two words have none yet."""
        return (link[0] not in self.sources) + (link[1] not in self.targets)


def grow_diag_final_and(forward: AbstractSet[Link], backward: AbstractSet[Link]) -> set[Link]:
    """What both have; then neighbours that one has, while a word is still free; then what links two free words.

    Links grow in place, target word by target word, as in the pseudo-code of Koehn et al.
    """
    union, grown = forward | backward, _GrowingAlignment(forward & backward)
    before = -1
    while before < len(grown.links):
        before = len(grown.links)
        for target, source in sorted((target, source) for source, target in union):
            if (source, target) in grown.links:
                for across, down in _NEIGHBOUR_OFFSETS:
                    link = source + across, target + down
                    if link in union and link not in grown.links and grown.count_unaligned_words(link):
                        grown.add_link(link)
    for some in (forward, backward):
        for target, source in sorted((target, source) for source, target in some):
            if grown.count_unaligned_words((source, target)) == 2:
                grown.add_link((source, target))
    return grown.links
