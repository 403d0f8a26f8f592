"""Rate limits: a window per client and period, a ban for repeated offenders, and the client of a request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_address
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from regard.serve.http.errors import HTTPError

PERIODS = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
CHARACTERS = 1000  # of text that one request pays for
MAX_CLIENTS = 50_000  # clients that are remembered at a time
MAX_ADDRESS = 100  # characters that are kept of an X-Forwarded-For entry


def count_requests(characters: int) -> int:
    """Return the requests that a text counts as by its length: one for each 1,000 characters begun."""
    return math.ceil(characters / CHARACTERS)


class Quota(NamedTuple):
    """Maximum requests in each period; -1 is no limit."""

    minute: int = -1
    hour: int = -1
    day: int = -1

    @property
    def limits(self) -> dict[str, int]:
        """The limits, by period; without those of -1."""
        return {period: limit for period, limit in self._asdict().items() if limit >= 0}


@dataclass(slots=True)
class Window:
    """Requests of one client in a period."""

    end: float
    count: int = 0


class FixedWindows:
    """Requests of each client in a period that begins with its first request."""

    def __init__(self, period: float, max_clients: int = MAX_CLIENTS) -> None:
        """Beyond `max_clients`, the clients whose periods end first are forgotten."""
        self.period = period
        self.max_clients = max_clients
        self.clients: dict[str, Window] = {}  # by the ends of their periods

    def get(self, client: str, now: float) -> Window:
        """Return the current period of a client, or a new one."""
        window = self.clients.get(client)
        return window if window and now < window.end else Window(now + self.period)

    def add(self, client: str, cost: int, now: float) -> None:
        """Count requests of a client."""
        window = self.get(client, now)
        if not window.count:
            self.clients.pop(client, None)
            self.clients[client] = window  # behind all others
        window.count += cost
        while len(self.clients) > self.max_clients or next(iter(self.clients.values())).end <= now:
            del self.clients[next(iter(self.clients))]


class RateLimiter:
    """Windows of all periods, and bans of clients that exceed their limits too often."""

    def __init__(self, ban_after: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        self.ban_after = ban_after
        self.clock = clock
        self.windows = {name: FixedWindows(period) for name, period in PERIODS.items()}
        self.violations = FixedWindows(PERIODS["hour"])

    def consume(self, client: str, cost: int, quota: Quota, *, by_length: int = 0, counted: int = 0) -> None:
        """Count `cost` requests in each period, or refuse them if they exceed the quota.

        If `by_length` is more, that many are counted, but at most the limit of the period, so that even the longest
        text is accepted. `counted` requests were counted for the same work before, and will be if the client retries.
        """
        self.refuse_banned(client)
        self.check(client, cost, quota, by_length=by_length, counted=counted)
        for period, limit in quota.limits.items():
            self.windows[period].add(client, max(cost, min(by_length, limit - counted)), self.clock())

    def check(self, client: str, cost: int, quota: Quota, *, by_length: int = 0, counted: int = 0) -> None:
        """Refuse requests that exceed the quota; see `consume`."""
        now = self.clock()
        for period, limit in quota.limits.items():
            window = self.windows[period].get(client, now)
            if window.count + max(cost, min(by_length, limit - counted)) > limit:
                if self.ban_after >= 0:
                    self.violations.add(client, 1, now)
                seconds = str(math.ceil(window.end - now))
                raise HTTPError(f"Slowdown: {limit} per 1 {period}", 429, {"Retry-After": seconds})

    def refuse_banned(self, client: str) -> None:
        """Refuse a client that exceeded its limits too often within an hour."""
        if self.ban_after >= 0 and self.violations.get(client, self.clock()).count >= max(1, self.ban_after):
            raise HTTPError("Too many request limits violations", 403)


def client_address(scope: Scope, trust_proxy: bool) -> str:
    """Return the address of a client: behind a trusted proxy, the last entry of X-Forwarded-For, which it wrote.

    uvicorn would take the first entry, which the client can write.
    """
    forwarded = Headers(scope=scope).getlist("x-forwarded-for") if trust_proxy else []
    last = forwarded[-1].rpartition(",")[2].strip() if forwarded else ""
    return last[:MAX_ADDRESS] or str((scope.get("client") or ("",))[0])


def client_network(address: str) -> str:
    """Return what all addresses of one client have in common: an IPv4 address, or the first 64 bits of an IPv6 one."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address  # a name that a proxy gave
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed), 64), strict=False))
