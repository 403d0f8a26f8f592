"""Readers of pairs, one a format."""
