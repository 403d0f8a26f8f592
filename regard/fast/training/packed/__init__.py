"""Packed (varlen) Transformer training: sentences are concatenated, without padding."""
