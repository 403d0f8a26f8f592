"""Whom an address stands for."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Network, ip_address

from starlette.types import Scope

LONGEST = 100  # letters that are kept of what a proxy says


def client_address(scope: Scope, trust_proxy: bool) -> str:
    """Return who sent a request: behind a trusted proxy, the last entry of X-Forwarded-For, which it wrote itself."""
    if trust_proxy and (forwarded := _last_forwarded(scope["headers"])):
        return forwarded[:LONGEST]
    return str((scope.get("client") or ("",))[0])


def _last_forwarded(headers: Iterable[tuple[bytes, bytes]]) -> str:
    values = [value for name, value in headers if name == b"x-forwarded-for"]
    return values[-1].decode("latin-1").rpartition(",")[2].strip() if values else ""


def household(address: str) -> str:
    """One client's addresses as one: of IPv6 whoever has any has 64 bits of them, and IPv4 may be written as IPv6."""
    try:
        found = ip_address(address)
    except ValueError:
        return address  # a proxy's own word for whoever it was
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))
