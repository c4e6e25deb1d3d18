"""Apache Kafka's Java share consumers, several in one JVM, command by command.

`ShareDriver` runs `java/ShareDriver.java` and speaks lines of JSON with it, one command at a time. Its
members live until they are closed; `kill` ends all of them at once, as a crash would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.java import ResidentJvm

SOURCE = Path(__file__).parent / "java" / "ShareDriver.java"
TIMEOUT_MS = 60_000


class Delivery(NamedTuple):
    """A record, as a member got it."""

    topic: str
    partition: int
    offset: int
    deliveries: int
    value: str


class Said(NamedTuple):
    """What the broker said to acknowledgements: the class of an exception, or None."""

    topic: str
    partition: int
    offsets: tuple[int, ...]
    error: str | None


class ShareDriver(ResidentJvm):
    """`java/ShareDriver.java` and its commands."""

    def __init__(self) -> None:
        super().__init__(SOURCE)

    def member(self, bootstrap: str, group: str, *topics: str, **config: str) -> ShareMember:
        """A new member of a group, with explicit acknowledgement; names are written with underscores for
        dots.
        """
        name = f"member-{next(self._names)}"
        values = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        self.call("open", name=name, config=values)
        member = ShareMember(self, name)
        member.subscribe(*topics)
        return member


class ShareMember:
    """One share consumer inside the JVM."""

    def __init__(self, driver: ShareDriver, name: str) -> None:
        self._driver = driver
        self._name = name
        # All that the broker said to its acknowledgements.
        self.said: list[Said] = []

    def _call(self, do: str, **arguments: Any) -> dict[str, Any]:
        answer = self._driver.call(do, name=self._name, **arguments)
        self.said += [
            Said(each["topic"], each["partition"], tuple(each["offsets"]), each["error"])
            for each in answer.get("said", ())
        ]
        return answer

    def subscribe(self, *topics: str) -> None:
        self._call("subscribe", topics=topics)

    def poll(self, timeout_ms: int = 200) -> list[Delivery]:
        return [Delivery(*each) for each in self._call("poll", timeout_ms=timeout_ms)["records"]]

    def take(self, timeout_s: float = 60) -> list[Delivery]:
        """Poll until there is something."""
        return self.take_until(bool, timeout_s=timeout_s, accept=False)

    def take_until(
        self, done: Callable[[list[Delivery]], bool], *, timeout_s: float = 60, accept: bool = True
    ) -> list[Delivery]:
        """Poll until all deliveries together satisfy `done`; accept each of them unless `accept` is false."""
        taken: list[Delivery] = []
        deadline = time.monotonic() + timeout_s
        while not done(taken):
            assert time.monotonic() < deadline, f"{len(taken)} deliveries in {timeout_s} s: {taken[-5:]}"
            polled = self.poll()
            taken += polled
            if accept and polled:
                self.acknowledge(polled)
                self.commit()
        return taken

    def acknowledge(self, records: Iterable[Delivery], type: str = "ACCEPT") -> None:
        self._call("acknowledge", records=[each[:3] for each in records], type=type)

    def commit(self, timeout_ms: int = TIMEOUT_MS) -> dict[tuple[str, int], str | None]:
        """Commit what was acknowledged; return the error of each partition, the class of an exception."""
        results = self._call("commit", timeout_ms=timeout_ms)["results"]
        return {(each["topic"], each["partition"]): each["error"] for each in results}

    def commit_async(self) -> None:
        self._call("commit_async")

    def lock_timeout_ms(self) -> int:
        """What the broker said of the locks on records; -1 if it has said nothing yet."""
        return int(self._call("lock_timeout")["ms"])

    def close(self, timeout_ms: int = TIMEOUT_MS) -> None:
        self._call("close", timeout_ms=timeout_ms)
