"""Tokenizers: SentencePiece (BPE, unigram, characters) and whole words; vocabularies of labels."""

from regard.tokenizers.factory import (
    TextSettings,
    Tokenizers,
    VocabularySettings,
    load_tokenizer,
    load_tokenizers,
    make_vocabulary_file_name,
    save_tokenizers,
    train_tokenizer,
    train_tokenizers,
)
from regard.tokenizers.label_vocabulary import LabelVocabulary
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import Tokenizer
from regard.tokenizers.words import WordTokenizer

__all__ = [
    "LabelVocabulary",
    "SentencePieceTokenizer",
    "TextSettings",
    "Tokenizer",
    "Tokenizers",
    "VocabularySettings",
    "WordTokenizer",
    "load_tokenizer",
    "load_tokenizers",
    "make_vocabulary_file_name",
    "save_tokenizers",
    "train_tokenizer",
    "train_tokenizers",
]
