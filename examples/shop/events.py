"""What happens in the shop: orders, payments and clicks, and with them the truth that the demo is measured
by.

Shop time is tied to the number of the event, not to the clock: the same seed gives the same day however
fast it is played. A few customers do most of the shopping; some events are late, some far too late, some
are rubbish. Whatever is generated is also counted here, so that at the end every record can be accounted
for.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SHOP_DAY = 6 * HOUR
WINDOW = 10 * MINUTE
TOO_LATE = 30 * MINUTE
PAY_WITHIN = HOUR
CUSTOMERS = 2_000
CATEGORIES = ("books", "games", "garden", "kitchen", "music", "toys")
TOPICS = ("orders", "payments", "clicks")


class Event(NamedTuple):
    topic: str
    key: bytes
    value: bytes
    timestamp_ms: int


@dataclass(slots=True)
class Truth:
    """What the pipeline has to arrive at: ids of good records by topic, the values of bad ones, and for each
    window and category the paid orders and their cents.
    """

    sent: Counter[str] = field(default_factory=Counter)
    good: dict[str, set[int]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    bad: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    revenue: dict[tuple[int, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    late: int = 0


class _Order(NamedTuple):
    number: int
    customer: int
    category: str
    cents: int
    at: int


class Shop:
    """One day with this many events; iterate over it once, then read the `truth`."""

    def __init__(self, events: int, begins_ms: int, *, seed: int = 7) -> None:
        self.truth = Truth()
        self._events = events
        # At the edge of a window, so that windows have round times.
        self._begin = begins_ms - begins_ms % WINDOW
        self._draw = random.Random(seed)
        self._due: list[tuple[int, _Order]] = []
        self._number = 0

    def __iter__(self) -> Iterator[Event]:
        per_hour = max(self._events * HOUR // SHOP_DAY, 1)
        for index in range(self._events):
            arrives = self._begin + index * SHOP_DAY // self._events
            self._number += 1
            if self._due and self._due[0][0] <= index:
                event = self._payment(heapq.heappop(self._due)[1], arrives)
            elif self._draw.random() < 0.25:
                event = self._order(arrives, index, per_hour)
            else:
                event = self._click(arrives)
            self.truth.sent[event.topic] += 1
            yield event

    def closing(self) -> Iterator[Event]:
        """The first orders and payments of the next day, for every partition: they move the watermark past
        the last window of this one. They belong to no window that is counted.
        """
        at = self._begin + SHOP_DAY + 5 * HOUR
        for key in range(64):
            for topic in ("orders", "payments"):
                self._number += 1
                fields = {"id": self._number, "customer": f"closing-{key}", "category": "books", "cents": 1}
                fields |= {"order": -self._number, "at": at}
                self.truth.sent[topic] += 1
                self.truth.good[topic].add(self._number)
                yield Event(topic, f"closing-{key}".encode(), _json(fields, self._now()), at)

    def _order(self, arrives: int, index: int, per_hour: int) -> Event:
        draw = self._draw
        customer = int(CUSTOMERS * draw.random() ** 3)
        category, cents = draw.choice(CATEGORIES), draw.randrange(100, 20_000)
        at = self._event_time(arrives)
        fields = {
            "id": self._number,
            "customer": f"c{customer}",
            "category": category,
            "cents": cents,
            "at": at,
        }
        if draw.random() < 0.05:
            fields["category"] = f" {category.upper()} "
        event = self._good_event("orders", f"c{customer}", fields, arrives)
        if event is None:
            return self._broken_event("orders", f"c{customer}", fields, arrives)
        if draw.random() < 0.9:
            delay = draw.randrange(max(per_hour // 3, 1))
            heapq.heappush(self._due, (index + delay, _Order(self._number, customer, category, cents, at)))
        return event

    def _payment(self, order: _Order, arrives: int) -> Event:
        at = self._event_time(arrives)
        fields = {"id": self._number, "customer": f"c{order.customer}", "order": order.number}
        fields |= {"cents": order.cents, "at": at}
        event = self._good_event("payments", f"c{order.customer}", fields, arrives)
        if event is None:
            return self._broken_event("payments", f"c{order.customer}", fields, arrives)
        if order.at <= at <= order.at + PAY_WITHIN:
            totals = self.truth.revenue[order.at - order.at % WINDOW, order.category]
            totals[0] += 1
            totals[1] += order.cents
        return event

    def _click(self, arrives: int) -> Event:
        customer = int(CUSTOMERS * self._draw.random() ** 3)
        fields = {"id": self._number, "customer": f"c{customer}", "page": f"/{self._draw.choice(CATEGORIES)}"}
        fields["at"] = self._event_time(arrives)
        event = self._good_event("clicks", f"c{customer}", fields, arrives)
        return event or self._broken_event("clicks", f"c{customer}", fields, arrives)

    def _event_time(self, arrives: int) -> int:
        """The event time: mostly now, sometimes earlier, but not too late."""
        if self._draw.random() < 0.03:
            self.truth.late += 1
            return arrives - self._draw.randrange(TOO_LATE * 5 // 6)
        return arrives

    def _good_event(self, topic: str, key: str, fields: dict[str, int | str], arrives: int) -> Event | None:
        """The good event; None for one in a hundred, which will be broken."""
        if self._draw.random() < 0.01:
            return None
        self.truth.good[topic].add(self._number)
        return Event(topic, key.encode(), _json(fields, self._now()), arrives)

    def _broken_event(self, topic: str, key: str, fields: dict[str, int | str], arrives: int) -> Event:
        kind = self._draw.choice(("garbage", "cut", "incomplete", "bad amount", "too late"))
        if kind == "bad amount" and topic == "clicks":
            kind = "incomplete"
        if kind == "garbage":
            value = b"\xff\xfe rubbish " + str(self._number).encode()
        elif kind == "cut":
            whole = _json(fields, None)
            value = whole[: len(whole) * 2 // 3]
        elif kind == "incomplete":
            value = _json({name: each for name, each in fields.items() if name != "customer"}, None)
        elif kind == "bad amount":
            value = _json(fields | {"cents": -1}, None)
        else:
            value = _json(fields | {"at": int(fields["at"]) - DAY}, None)
        self.truth.bad[topic, value] += 1
        self.truth.reasons["incomplete" if kind in ("garbage", "cut") else kind] += 1
        return Event(topic, key.encode(), value, arrives)

    @staticmethod
    def _now() -> int:
        return int(time.time() * 1000)


def _json(fields: dict[str, int | str], sent_ms: int | None) -> bytes:
    """Written by hand: a third of the time of `json.dumps`, and these are plain names and numbers."""
    parts = [
        f'"{name}":{value}' if isinstance(value, int) else f'"{name}":"{value}"'
        for name, value in fields.items()
    ]
    if sent_ms is not None:
        parts.append(f'"sent":{sent_ms}')
    return ("{" + ",".join(parts) + "}").encode()
