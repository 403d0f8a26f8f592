"""Special tokens and tokenizers; `regard.tokenizers` holds the implementations."""

from regard.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from regard.tokenizers import (
    LabelVocabulary,
    SentencePieceTokenizer,
    TextSettings,
    Tokenizer,
    Tokenizers,
    VocabularySettings,
    WordTokenizer,
    load_tokenizer,
    load_tokenizers,
    make_vocabulary_file_name,
    save_tokenizers,
    train_tokenizer,
    train_tokenizers,
)

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SPECIAL_TOKENS",
    "UNK",
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
