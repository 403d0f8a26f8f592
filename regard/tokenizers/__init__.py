"""Tokenizers: SentencePiece (BPE, unigram, characters), whole words, and vocabularies of labels."""
