"""What somebody says in the headers to be let in."""

from __future__ import annotations

from collections.abc import Mapping


def bearer(headers: Mapping[str, str]) -> str:
    """The token of `Authorization: Bearer TOKEN`; nothing where there is none, or something else."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
