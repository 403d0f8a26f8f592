"""Synchronous grammar that generates English and German sentence pairs with gold word alignments."""

from regard.synthetic.grammar.sentences import AlignedPair
from regard.synthetic.grammar.splits import generate_corpus

__all__ = ["AlignedPair", "generate_corpus"]
