"""Two alignments of one pair, made in the two directions, as one (Och & Ney 2003; Koehn et al. 2005)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from regard.data.links import Link

NEIGHBOURS = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if (row, column) != (0, 0)]


def grow_diag_final_and(forward: AbstractSet[Link], backward: AbstractSet[Link]) -> set[Link]:
    """What both have; then neighbours that one has, while a word is still free; then what links two free words."""
    links, union = set(forward & backward), forward | backward
    grew = True
    while grew:
        grew = False
        for source, target in sorted(links):
            for row, column in NEIGHBOURS:
                link = source + row, target + column
                if link in union and link not in links and free(links, link) != (False, False):
                    links.add(link)
                    grew = True
    for some in (forward, backward):
        for link in sorted(some):
            if free(links, link) == (True, True):
                links.add(link)
    return links


def free(links: AbstractSet[Link], link: Link) -> tuple[bool, bool]:
    """Whether the source word, and the target word, of a link have none yet."""
    return all(source != link[0] for source, _ in links), all(target != link[1] for _, target in links)
