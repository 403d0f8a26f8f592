"""Special tokens and tokenizers; `regard.tokenizers` holds the implementations."""

from regard.special_tokens import *  # noqa: F403
from regard.tokenizers import *  # noqa: F403
