"""How long a sentence is."""

from __future__ import annotations

import re
from functools import lru_cache

# Scripts that put no spaces between words. Chinese characters and kana count one by one; a word of Thai, Lao, Burmese
# or Khmer has about four.
SPACELESS = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
    "|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]{1,4}"
)


@lru_cache(maxsize=8)  # several rules ask about one pair in turn
def words(text: str) -> int:
    """Words between white space; in scripts that write no spaces, about as many as there would be.

    >>> words("a small house"), words("一座小房子")
    (3, 5)
    """
    return len(text.split()) if text.isascii() else len(SPACELESS.sub(" _ ", text).split())
