"""Subscriptions and assignments that members of a classic consumer group exchange through the broker.

Both have their version as int16 before them. Members of one group may run different clients, so an unknown
newer version is read as the last known one, and bytes after the known fields are ignored.
"""

from __future__ import annotations

from typing import TypeVar

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.prefixed import PREFIX, encode_prefixed, read_prefix
from ottla.protocol.schema import Buffer, Message, Struct, array, binary, int32, string

M = TypeVar("M", bound=Message)


class ConsumerProtocolTopicPartition(Struct):
    topic: str = string(map_key=True)
    partitions: list[int] = array("int32")


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """The subscription of a member. v1: its owned partitions; v2: the generation of these; v3: its rack."""

    topics: list[str] = array("string")
    user_data: Buffer | None = binary(nullable=True, default=None, zero_copy=True)
    owned_partitions: list[ConsumerProtocolTopicPartition] = array(
        ConsumerProtocolTopicPartition, versions="1+", ignorable=True
    )
    generation_id: int = int32(versions="2+", default=-1, ignorable=True)
    rack_id: str | None = string(versions="3+", nullable=True, default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """The assignment of a member."""

    assigned_partitions: list[ConsumerProtocolTopicPartition] = array(ConsumerProtocolTopicPartition)
    user_data: Buffer | None = binary(nullable=True, default=None, zero_copy=True)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = 3) -> bytes:
    return encode_prefixed(subscription, version)


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    return _decode_lenient(ConsumerProtocolSubscription, data)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = 3) -> bytes:
    return encode_prefixed(assignment, version)


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    return _decode_lenient(ConsumerProtocolAssignment, data)


def _decode_lenient(cls: type[M], data: Buffer) -> M:
    version = read_prefix(data)
    if version < 0:
        raise MalformedMessage(f"{cls.__name__}: version {version} is below 0")
    return cls.decode_from(data, PREFIX.size, min(version, cls.VERSIONS[1]))[0]
