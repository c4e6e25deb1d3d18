"""Names that every package shares: a partition, the text of an id, and Kafka's internal topics.

The address of a host and a port is `ottla.runtime.address.Address`: the network below needs it as well.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic; its text is the name of its directory, `topic-partition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition of a topic, by the id of the topic."""

    topic_id: bytes
    partition: int


CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"

INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})
"""The topics that clients see as internal and may not write to, as in Kafka's `Topic.isInternal`."""

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CLUSTER_METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
CLUSTER_METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
"""The one partition of the metadata log. It is no topic of the image, so it is not in `INTERNAL_TOPICS`."""
METADATA_PARTITION_DIR: Final = str(CLUSTER_METADATA_PARTITION)


def uuid_text(uuid: bytes) -> str:
    """Write an id as Kafka does, in base64url without padding.

    >>> uuid_text(bytes(16))
    'AAAAAAAAAAAAAAAAAAAAAA'
    """
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """Read an id from Kafka's text; ValueError if it is none."""
    try:
        uuid = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        uuid = b""
    if len(uuid) != 16:
        raise ValueError(f"{text!r} is not an id: 22 characters of base64url are needed")
    return uuid


class SharePartitionKey(NamedTuple):
    """A share partition: a partition of a topic as one share group consumes it."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key of FindCoordinator, whose hash also gives the partition of `__share_group_state`.

        >>> SharePartitionKey("workers", bytes(16), 3).coordinator_key
        'workers:AAAAAAAAAAAAAAAAAAAAAA:3'
        """
        return f"{self.group_id}:{uuid_text(self.topic_id)}:{self.partition}"

    @classmethod
    def parse(cls, key: str) -> SharePartitionKey:
        """Read a key of FindCoordinator; ValueError if it is none. A group id may contain colons."""
        parts = key.rstrip(":").rsplit(":", 2)
        if len(parts) < 3:
            raise ValueError(f"Invalid share coordinator key {key!r}: it is not group:topic-id:partition")
        group_id, topic_id, partition = parts
        if not group_id.strip():
            raise ValueError(f"Invalid share coordinator key {key!r}: the group id is empty")
        try:
            return cls(group_id, parse_uuid(topic_id), int(partition))
        except ValueError as error:
            raise ValueError(f"Invalid share coordinator key {key!r}: {error}") from None


# The names of topics, by the rules of Kafka's `Topic`

MAX_TOPIC_NAME_LENGTH: Final = 249
_LEGAL_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")


def invalid_topic_name(name: str) -> str | None:
    """Return why a topic's name is not valid, as the error message says it; None if it is valid."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    elif _LEGAL_TOPIC_NAME.match(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {reason}"


def has_collision_chars(name: str) -> bool:
    """Whether the name has a character that metrics replace: they write `_` for `.`, so two names that differ
    only there would share their metrics, and Kafka refuses the second.
    """
    return "." in name or "_" in name


def unify_collision_chars(name: str) -> str:
    """Return a key that is equal for two names exactly when they collide."""
    return name.replace(".", "_")
