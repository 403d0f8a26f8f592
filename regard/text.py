"""Special tokens and tokenizers; `regard.tokenizers` holds the implementations."""

from regard.special_tokens import *  # noqa: F403
from regard.tokenizers.sentencepiece import SentencePieceTokenizer as SentencePieceTokenizer
from regard.tokenizers.tokenizer import *  # noqa: F403
from regard.tokenizers.vocabularies import LabelVocabulary as LabelVocabulary
from regard.tokenizers.words import WordTokenizer as WordTokenizer
