"""What a broker has done for each topic: records and bytes in and out, requests, changes of in-sync sets.

All partitions of a topic on this broker share one object, and add to its plain integers once for each append
or read. The counts never go down as long as the broker runs: those of a deleted topic stay in the sum of all
topics (`BrokerTopicStatistics.retired`).
"""

from __future__ import annotations

from typing import Final


class TopicStatistics:
    """The counts of one topic; Kafka's `BrokerTopicMetrics`."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_isr_updates",
        "failed_produces",
        "fetches",
        "isr_expands",
        "isr_shrinks",
        "messages_in",
        "produces",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        # Appended as the leader, and read for consumers.
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        # Fetched from leaders, and read for followers.
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        # Appends and reads of single partitions, and those that failed for a reason other than the client.
        self.produces = 0
        self.failed_produces = 0
        self.fetches = 0
        self.failed_fetches = 0
        # Changes of in-sync sets that the controller has made, and those that it refused.
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.failed_isr_updates = 0

    def add(self, other: TopicStatistics) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BrokerTopicStatistics:
    """The counts of all topics that this broker has had since its start."""

    __slots__ = ("retired", "topics")

    def __init__(self) -> None:
        self.topics: Final[dict[str, TopicStatistics]] = {}
        # The sum of those that were deleted.
        self.retired: Final = TopicStatistics()

    def of(self, topic: str) -> TopicStatistics:
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicStatistics()
        return found

    def retire(self, topic: str) -> None:
        """Keep the counts of a topic that is gone in the sum only."""
        found = self.topics.pop(topic, None)
        if found is not None:
            self.retired.add(found)
