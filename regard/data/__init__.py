"""Corpora on disk become batches."""
