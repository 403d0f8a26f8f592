"""Whom an address stands for."""

from __future__ import annotations

from ipaddress import IPv6Network, ip_address


def household(address: str) -> str:
    """One client's addresses as one: of IPv6 whoever has any has 64 bits of them, and IPv4 may be written as IPv6."""
    try:
        found = ip_address(address)
    except ValueError:
        return address  # a proxy's own word for whoever it was
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))
