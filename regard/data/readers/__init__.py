"""Readers of sentence pairs: TSV, text files, JSON lines, Parquet, TMX, XLIFF and PO."""
