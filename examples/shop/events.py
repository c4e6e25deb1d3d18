"""What happens in the shop: orders, payments and clicks, and with them the truth that the demo is measured
by.

Orders are typed, by the schema in `order.avsc`; payments and clicks are JSON, without one. Shop time is tied
to the number of the event, not to the clock: the same seed gives the same day however fast it is played. A
few customers do most of the shopping; some events are late, some far too late, some are rubbish. Whatever is
generated is also counted here, so that at the end every record can be accounted for.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SHOP_DAY = 6 * HOUR
WINDOW = 10 * MINUTE
TOO_LATE = 30 * MINUTE
PAY_WITHIN = HOUR
CUSTOMERS = 2_000
# One record in a hundred is not as it should be.
BROKEN = 0.01
CATEGORIES = ("books", "games", "garden", "kitchen", "music", "toys")
TOPICS = ("orders", "payments", "clicks")
ORDER_SCHEMA = Path(__file__).with_name("order.avsc")


@dataclass(frozen=True, slots=True)
class Order:
    """An order, as `order.avsc` has it."""

    id: int
    customer: str
    category: str
    cents: int
    at: datetime
    sent: datetime


class Event(NamedTuple):
    """A record; an order that fits the schema is sent through the serializer, all else as bytes."""

    topic: str
    key: bytes
    value: bytes | Order
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


class Shop:
    """One day with this many events; iterate over it once, then read the `truth`. `encode` makes the bytes of
    an order.
    """

    def __init__(
        self, events: int, begins_ms: int, encode: Callable[[Order], bytes], *, seed: int = 7
    ) -> None:
        self.truth = Truth()
        self._events = events
        self._encode = encode
        # At the edge of a window, so that windows have round times.
        self._begin = begins_ms - begins_ms % WINDOW
        self._draw = random.Random(seed)
        self._due: list[tuple[int, int, Order]] = []
        self._number = 0

    def __iter__(self) -> Iterator[Event]:
        per_hour = max(self._events * HOUR // SHOP_DAY, 1)
        for index in range(self._events):
            arrives = self._begin + index * SHOP_DAY // self._events
            self._number += 1
            if self._due and self._due[0][0] <= index:
                event = self._payment(heapq.heappop(self._due)[2], arrives)
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
        for number in range(64):
            customer = f"closing-{number}"
            self._number += 2
            order = Order(self._number, customer, "books", 1, _time(at), _now())
            payment = {"id": self._number - 1, "customer": customer, "order": -1, "cents": 1, "at": at}
            values = {"orders": order, "payments": _json(payment, sent=True)}
            for topic, value in values.items():
                self.truth.sent[topic] += 1
                yield Event(topic, customer.encode(), value, at)
            self.truth.good["orders"].add(order.id)
            self.truth.good["payments"].add(payment["id"])

    def _order(self, arrives: int, index: int, per_hour: int) -> Event:
        draw = self._draw
        customer = f"c{int(CUSTOMERS * draw.random() ** 3)}"
        category, cents = draw.choice(CATEGORIES), draw.randrange(100, 20_000)
        order = Order(self._number, customer, category, cents, _time(self._event_time(arrives)), _now())
        written = replace(order, category=f" {category.upper()} ") if draw.random() < 0.05 else order
        if draw.random() < BROKEN:
            return Event("orders", customer.encode(), self._broken_order(written), arrives)
        self.truth.good["orders"].add(order.id)
        if draw.random() < 0.9:
            delay = draw.randrange(max(per_hour // 3, 1))
            heapq.heappush(self._due, (index + delay, order.id, order))
        return Event("orders", customer.encode(), written, arrives)

    def _broken_order(self, order: Order) -> bytes | Order:
        """An order that is no order: not by the schema, or only by it."""
        kind = self._draw.choice(("garbage", "cut", "without a schema", "bad amount", "too late"))
        value: bytes | Order
        if kind == "garbage":
            value = b"\xff\xfe rubbish " + str(order.id).encode()
        elif kind == "cut":
            whole = self._encode(order)
            value = whole[: len(whole) * 2 // 3]
        elif kind == "without a schema":
            value = _json({"id": order.id, "customer": order.customer, "cents": order.cents})
        elif kind == "bad amount":
            value = replace(order, cents=-1)
        else:
            value = replace(order, at=order.at - timedelta(milliseconds=DAY))
        written = self._encode(value) if isinstance(value, Order) else value
        self._note_bad("orders", written, kind if isinstance(value, Order) else "incomplete")
        return value

    def _payment(self, order: Order, arrives: int) -> Event:
        at = self._event_time(arrives)
        fields = {"id": self._number, "customer": order.customer, "order": order.id}
        fields |= {"cents": order.cents, "at": at}
        event = self._event("payments", fields, arrives)
        ordered = _millis(order.at)
        if self._number in self.truth.good["payments"] and ordered <= at <= ordered + PAY_WITHIN:
            totals = self.truth.revenue[ordered - ordered % WINDOW, order.category]
            totals[0] += 1
            totals[1] += order.cents
        return event

    def _click(self, arrives: int) -> Event:
        customer = int(CUSTOMERS * self._draw.random() ** 3)
        fields = {"id": self._number, "customer": f"c{customer}", "page": f"/{self._draw.choice(CATEGORIES)}"}
        return self._event("clicks", fields | {"at": self._event_time(arrives)}, arrives)

    def _event_time(self, arrives: int) -> int:
        """The event time: mostly now, sometimes earlier, but not too late."""
        if self._draw.random() < 0.03:
            self.truth.late += 1
            return arrives - self._draw.randrange(TOO_LATE * 5 // 6)
        return arrives

    def _event(self, topic: str, fields: dict[str, int | str], arrives: int) -> Event:
        """The event in JSON, which is sometimes broken."""
        if self._draw.random() < BROKEN:
            value = self._broken_json(topic, fields)
        else:
            self.truth.good[topic].add(self._number)
            value = _json(fields, sent=True)
        return Event(topic, str(fields["customer"]).encode(), value, arrives)

    def _broken_json(self, topic: str, fields: dict[str, int | str]) -> bytes:
        kind = self._draw.choice(("garbage", "cut", "incomplete", "bad amount", "too late"))
        if kind == "bad amount" and topic == "clicks":
            kind = "incomplete"
        if kind == "garbage":
            value = b"\xff\xfe rubbish " + str(self._number).encode()
        elif kind == "cut":
            whole = _json(fields)
            value = whole[: len(whole) * 2 // 3]
        elif kind == "incomplete":
            value = _json({name: each for name, each in fields.items() if name != "customer"})
        elif kind == "bad amount":
            value = _json(fields | {"cents": -1})
        else:
            value = _json(fields | {"at": int(fields["at"]) - DAY})
        self._note_bad(topic, value, "incomplete" if kind in ("garbage", "cut") else kind)
        return value

    def _note_bad(self, topic: str, value: bytes, reason: str) -> None:
        self.truth.bad[topic, value] += 1
        self.truth.reasons[reason] += 1


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC) + timedelta(milliseconds=ms % 1000)


def _millis(at: datetime) -> int:
    return int(at.timestamp()) * 1000 + at.microsecond // 1000


def _now() -> datetime:
    return _time(time.time_ns() // 1_000_000)


def _json(fields: dict[str, int | str], *, sent: bool = False) -> bytes:
    """Written by hand: a third of the time of `json.dumps`, and these are plain names and numbers."""
    parts = [
        f'"{name}":{value}' if isinstance(value, int) else f'"{name}":"{value}"'
        for name, value in fields.items()
    ]
    if sent:
        parts.append(f'"sent":{time.time_ns() // 1_000_000}')
    return ("{" + ",".join(parts) + "}").encode()
