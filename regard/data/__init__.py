"""Training data: reading of corpora, dev split, encoding, batching and loading."""
