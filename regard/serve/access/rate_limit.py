"""Rate limits: a sliding window per client and period, a ban for repeated offenders, and the client of a request."""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_address
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from regard.serve.http.errors import HTTPError

PERIODS = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
BUCKETS = 60  # per period; requests of one bucket expire together
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
class Bucket:
    """Requests of one client between two moments."""

    first: float
    last: float
    cost: int


class SlidingWindow:
    """Requests of each client within the last period; clients without any are forgotten."""

    def __init__(self, period: float, max_clients: int = MAX_CLIENTS) -> None:
        """Beyond `max_clients`, the clients whose last request is longest ago are forgotten."""
        self.period = period
        self.max_clients = max_clients
        self.clients: OrderedDict[str, deque[Bucket]] = OrderedDict()  # by their last request, oldest first

    def buckets(self, client: str, now: float) -> deque[Bucket]:
        """Return the buckets of a client that have not expired, oldest first."""
        buckets = self.clients.get(client, deque())
        while buckets and buckets[0].last + self.period <= now:
            buckets.popleft()
        return buckets

    def count(self, client: str, now: float) -> int:
        """Return the requests of a client in the window."""
        return sum(bucket.cost for bucket in self.buckets(client, now))

    def seconds_until(self, client: str, limit: int, now: float) -> float:
        """Return the seconds until a client has at most `limit` requests in the window."""
        excess = self.count(client, now) - limit
        for bucket in self.buckets(client, now):
            excess -= bucket.cost
            if excess <= 0:
                return bucket.last + self.period - now
        return self.period

    def add(self, client: str, cost: int, now: float) -> None:
        """Count requests of a client."""
        buckets = self.clients.setdefault(client, deque())
        self.clients.move_to_end(client)
        if buckets and now - buckets[-1].first < self.period / BUCKETS:
            buckets[-1].last = now
            buckets[-1].cost += cost
        else:
            buckets.append(Bucket(now, now, cost))
        while len(self.clients) > self.max_clients or not self.buckets(next(iter(self.clients)), now):
            self.clients.popitem(last=False)


class RateLimiter:
    """Windows of all periods, and bans of clients that exceed their limits too often."""

    def __init__(self, ban_after: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        self.ban_after = ban_after
        self.clock = clock
        self.windows = {name: SlidingWindow(period) for name, period in PERIODS.items()}
        self.violations = SlidingWindow(PERIODS["hour"])

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
            window, due = self.windows[period], max(cost, min(by_length, limit - counted))
            if window.count(client, now) + due > limit:
                if self.ban_after >= 0:
                    self.violations.add(client, 1, now)
                seconds = max(1, math.ceil(window.seconds_until(client, limit - due - counted, now)))
                raise HTTPError(f"Slowdown: {limit} per 1 {period}", 429, {"Retry-After": str(seconds)})

    def refuse_banned(self, client: str) -> None:
        """Refuse a client that exceeded its limits too often within an hour."""
        if self.ban_after >= 0 and self.violations.count(client, self.clock()) >= max(1, self.ban_after):
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
