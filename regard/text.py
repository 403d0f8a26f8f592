"""Special tokens and tokenizers; `regard.tokenizers` holds the implementations."""

from regard.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import (
    TextSettings,
    Tokenizer,
    Tokenizers,
    VocabularySettings,
    load_tokenizer,
    load_tokenizers,
    save_tokenizer,
    save_tokenizers,
    train_tokenizer,
    train_tokenizers,
)
from regard.tokenizers.words import LabelVocabulary, WordTokenizer

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
    "save_tokenizer",
    "save_tokenizers",
    "train_tokenizer",
    "train_tokenizers",
]
