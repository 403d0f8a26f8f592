"""How much one client may ask for."""

from __future__ import annotations

import math
import time

from limits import RateLimitItem, RateLimitItemPerDay, RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from regard.serve.refusal import Refusal
from regard.serve.settings import Settings


class Limits:
    """Windows that move along, one for each client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.windows = MovingWindowRateLimiter(MemoryStorage())

    def spend(self, client: str, cost: int, per_minute: int) -> None:
        """Takes so many requests off what a client has left; refused where it has not so many."""
        self.refuse_banned(client)
        self.check(client, cost, per_minute)
        for item in self.items(per_minute):
            self.windows.hit(item, client, cost=cost)

    def check(self, client: str, cost: int, per_minute: int) -> None:
        """Refuses a client that has not so many left."""
        for item in self.items(per_minute):
            if cost > item.amount or not self.windows.test(item, client, cost=cost):
                self.violated(client)
                wait = max(1, math.ceil(self.windows.get_window_stats(item, client).reset_time - time.time()))
                raise Refusal(f"Slowdown: {item.amount} per 1 {item.GRANULARITY.name}", 429, {"Retry-After": str(wait)})

    def items(self, per_minute: int) -> list[RateLimitItem]:
        """The limits that hold."""
        settings = self.settings
        wanted = (
            (RateLimitItemPerMinute, per_minute),
            (RateLimitItemPerHour, settings.hourly_req_limit),
            (RateLimitItemPerDay, settings.daily_req_limit),
        )
        return [item(amount) for item, amount in wanted if amount >= 0]

    def refuse_banned(self, client: str) -> None:
        """Whoever went over the limits too often is not listened to for a while."""
        if self.settings.ban_after >= 0 and not self.windows.test(self.ban(), "ban", client):
            raise Refusal("Too many request limits violations", 403)

    def violated(self, client: str) -> None:
        """Counts a time over the limit."""
        if self.settings.ban_after >= 0:
            self.windows.hit(self.ban(), "ban", client)

    def ban(self) -> RateLimitItem:
        """Times over the limit in an hour that are borne with."""
        return RateLimitItemPerHour(max(1, self.settings.ban_after))
