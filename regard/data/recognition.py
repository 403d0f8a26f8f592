"""What a pipe without a name holds, by its first bytes."""

from __future__ import annotations

import re
from typing import IO

PACKED = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
XML = re.compile(rb"\s*<(\?xml|!DOCTYPE|!--|tmx|xliff)[\s>]")
PO = re.compile(rb'\s*(#|msgid\s+"|msgctxt\s+")')
AHEAD = 1 << 13


def first_bytes(file: IO[bytes]) -> bytes:
    """What comes next in a file, which is still to be read."""
    found: bytes = file.peek(AHEAD)  # type: ignore[attr-defined]  # every stream that is read here can
    return found


def packing(head: bytes) -> str:
    """`.gz`, `.xz` or `.zst`; nothing where it is not compressed."""
    return next((ending for magic, ending in PACKED.items() if head.startswith(magic)), "")


def form(head: bytes) -> str:
    """The format's ending; tab-separated pairs are what looks like nothing else."""
    plain = head.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xfe\xff")  # UTF-16 looks like this
    if head.startswith(b"PAR1"):
        return ".parquet"
    if XML.match(plain):
        return ".xliff" if b"<xliff" in plain else ".tmx"
    if b"\t" in plain.partition(b"\n")[0]:
        return ".tsv"
    return ".jsonl" if plain.lstrip().startswith(b"{") else ".po" if PO.match(plain) else ".tsv"
