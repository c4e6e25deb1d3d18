"""The subscriptions of a consumer group, resolved against the topics of the metadata image.

Regular expressions are RE2's, so that a hostile one costs no more than another, and must match a whole name.
The metadata hash stands for the subscribed topics as they are now; when it differs from the hash of the
group, the group epoch grows and a new assignment is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.re2_syntax import compile_re2

_HASH_VERSION = 0


@lru_cache(maxsize=32)  # each may take megabytes
def _compile(regex: str) -> Any:
    try:
        return compile_re2(regex)
    except ValueError as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from None


def check_regex(regex: str) -> None:
    _compile(regex)


def matching_topics(
    regex: str, image: MetadataImage, sees_topic: Callable[[str], bool] | None = None
) -> frozenset[str]:
    """The topics whose whole name matches, and that the member may see."""
    pattern = _compile(regex)
    return frozenset(
        name
        for name in image.topics.by_name
        if pattern.fullmatch(name) is not None and (sees_topic is None or sees_topic(name))
    )


def topic_ids(topics: Iterable[str], image: MetadataImage) -> frozenset[bytes]:
    by_name = image.topics.by_name
    return frozenset(by_name[name].id for name in topics if name in by_name)


def metadata_hash(topics: Iterable[str], image: MetadataImage) -> int:
    """A number for the subscribed topics that exist, with their ids and sizes; 0 for none.

    Kafka hashes racks as well and by another function. Only equality counts: a group that moves between
    the two kinds of broker is assigned again once.
    """
    by_name = image.topics.by_name
    known = sorted(name for name in topics if name in by_name)
    if not known:
        return 0
    digest = blake2b(bytes([_HASH_VERSION]), digest_size=8)
    for name in known:
        topic = by_name[name]
        digest.update(topic.id)
        digest.update(f"{name}\0{len(topic.partitions)}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True) or 1
