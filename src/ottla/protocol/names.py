"""Names that every floor shares: a partition, the text of an id, and the topics that Kafka keeps for itself.

The address of a host and a port is `ottla.runtime.address.Address`: the network below needs it as well.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic; its text is the name of its directory, `topic-partition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


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
