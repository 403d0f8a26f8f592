"""The addresses that are listened on: taken before a model is loaded, so that what is wrong with them is said first."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from regard.errors import UserError

ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # of a name that stands for several, one may be such as is not here
WAITING = 2048  # connections that wait to be taken


def taken(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host; nobody can connect yet."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: no such address ({getattr(error, 'strerror', None) or error})") from error
    sockets: list[socket.socket] = []
    for number, (family, kind, protocol, _, address) in enumerate(found):
        try:
            sockets.append(bound(family, kind, protocol, (address[0], port, *address[2:])))
        except OSError as error:
            if error.errno in ABSENT and (sockets or number + 1 < len(found)):
                continue
            release(sockets)
            raise refused(host, port, error) from error
        port = sockets[0].getsockname()[1]  # 0 is any: the same on all of them
    return sockets


def bound(family: int, kind: int, protocol: int, address: tuple[str | int, ...]) -> socket.socket:
    """One of them."""
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def listen(sockets: Sequence[socket.socket]) -> None:
    """From now on somebody can connect, unless another process was quicker since the addresses were taken."""
    for one in sockets:
        try:
            one.listen(WAITING)
        except OSError as error:
            host, port = one.getsockname()[:2]
            raise refused(host, port, error) from error


def release(sockets: Sequence[socket.socket]) -> None:
    """Gives them back."""
    for one in sockets:
        one.close()


def refused(host: str, port: int, error: OSError) -> UserError:
    """Why an address cannot be listened on."""
    why = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} of {host} is in use already; choose another with --port (0: any that is free)")
    return UserError(f"--host {host} --port {port} cannot be listened on: {why}")


def url(host: str, sockets: Sequence[socket.socket]) -> str:
    """Where the service is, for a person to open."""
    port = sockets[0].getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host or '0.0.0.0'}:{port}"
