"""Character references of HTML, in text of any origin."""

from __future__ import annotations

import html
import re

NUMBER = re.compile(r"&#(?=[0-9])0*+([0-9]*+)")
DIGITS = 8  # a number that long, without zeros before it, is beyond Unicode


def unescape(text: str) -> str:
    """Do what `html.unescape` does, and also read numbers with thousands of digits, which `int` refuses: U+FFFD."""
    return html.unescape(NUMBER.sub(lambda found: f"&#{found[1][:DIGITS] or '0'}", text))
