"""Synchronous grammar that generates English and German sentence pairs with gold word alignments."""
