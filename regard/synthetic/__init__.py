"""Synthetic corpora, one for each task, on which demos and tests train."""
