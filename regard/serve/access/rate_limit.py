"""How much one client may ask for."""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_address
from typing import NamedTuple

from starlette.types import Scope

from regard.serve.http.errors import Refusal

PERIODS = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
SLOTS = 60  # of a period: what is asked for in one of them is remembered, and forgotten, together
CHARACTERS = 1000  # of text that one request pays for
MOST = 50_000  # clients that are remembered at a time


def price(characters: int) -> int:
    """Return the requests that a text counts as by its length: one for each 1,000 characters begun."""
    return math.ceil(characters / CHARACTERS)


class Allowance(NamedTuple):
    """Requests in each period; −1: as many as one likes."""

    minute: int = -1
    hour: int = -1
    day: int = -1

    @property
    def bounds(self) -> dict[str, int]:
        """Those that there are."""
        return {name: most for name, most in self._asdict().items() if most >= 0}


@dataclass(slots=True)
class Slot:
    """What was asked for from one moment to another."""

    first: float
    last: float
    cost: int


class Ledger:
    """What each client asked for within a period that moves along; who asked for nothing in it is forgotten."""

    def __init__(self, period: float, most: int = MOST) -> None:
        """`most` clients at a time: were there more, those who have not come for longest would be forgotten."""
        self.period = period
        self.most = most
        self.clients: OrderedDict[str, deque[Slot]] = OrderedDict()  # who came last is last

    def window(self, client: str, now: float) -> deque[Slot]:
        """What a client asked for, the oldest first."""
        slots = self.clients.get(client, deque())
        while slots and slots[0].last + self.period <= now:
            slots.popleft()
        return slots

    def spent(self, client: str, now: float) -> int:
        """How much that was."""
        return sum(slot.cost for slot in self.window(client, now))

    def wait(self, client: str, most: int, now: float) -> float:
        """Seconds until it was no more than so much."""
        over = self.spent(client, now) - most
        for slot in self.window(client, now):
            over -= slot.cost
            if over <= 0:
                return slot.last + self.period - now
        return self.period

    def add(self, client: str, cost: int, now: float) -> None:
        """Writes down what a client asks for."""
        slots = self.clients.setdefault(client, deque())
        self.clients.move_to_end(client)
        if slots and now - slots[-1].first < self.period / SLOTS:
            slots[-1].last, slots[-1].cost = now, slots[-1].cost + cost
        else:
            slots.append(Slot(now, now, cost))
        while len(self.clients) > self.most or not self.window(next(iter(self.clients)), now):
            self.clients.popitem(last=False)


class Limits:
    """The periods of all clients, and who is not listened to for a while."""

    def __init__(self, ban_after: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        self.ban_after = ban_after
        self.clock = clock
        self.ledgers = {name: Ledger(period) for name, period in PERIODS.items()}
        self.violations = Ledger(PERIODS["hour"])

    def spend(self, client: str, cost: int, allowed: Allowance, *, by_length: int = 0, counted: int = 0) -> None:
        """Takes `cost` requests off what a client has left in each period; refused where it has not so many.

        If `by_length` is more, it takes that many, but at most the limit of the period, which even the longest text
        fits in. `counted` requests were taken for the same work before, and will be again when the client retries.
        """
        self.refuse_banned(client)
        self.check(client, cost, allowed, by_length=by_length, counted=counted)
        for name, most in allowed.bounds.items():
            self.ledgers[name].add(client, max(cost, min(by_length, most - counted)), self.clock())

    def check(self, client: str, cost: int, allowed: Allowance, *, by_length: int = 0, counted: int = 0) -> None:
        """Refuses a client that has not so many left."""
        now = self.clock()
        for name, most in allowed.bounds.items():
            due = max(cost, min(by_length, most - counted))
            if self.ledgers[name].spent(client, now) + due > most:
                if self.ban_after >= 0:
                    self.violations.add(client, 1, now)
                wait = max(1, math.ceil(self.ledgers[name].wait(client, most - due - counted, now)))
                raise Refusal(f"Slowdown: {most} per 1 {name}", 429, {"Retry-After": str(wait)})

    def refuse_banned(self, client: str) -> None:
        """Whoever went over the limits too often in an hour is not listened to."""
        if self.ban_after >= 0 and self.violations.spent(client, self.clock()) >= max(1, self.ban_after):
            raise Refusal("Too many request limits violations", 403)


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
