"""What comes to a group machine: requests with who sent them, and news from the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ottla.metadata.image.image import MetadataImage
from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A request of the protocol, with what the machine has to know of its sender."""

    body: Any
    version: int
    client_id: str = ""
    client_host: str = ""
    sees_topic: Callable[[str], bool] | None = None
    """Whether the sender may see a topic that its regular expression matches; None: all."""


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """One group of an OffsetFetch request; topics by name, None for all."""

    group: OffsetFetchRequestGroup
    require_stable: bool


@dataclass(frozen=True, slots=True)
class DescribeClassic:
    group_id: str


@dataclass(frozen=True, slots=True)
class DescribeConsumer:
    group_id: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    group_id: str


@dataclass(frozen=True, slots=True)
class ListGroups:
    states: frozenset[str]
    """In lower case; empty for all."""
    types: frozenset[str]


@dataclass(frozen=True, slots=True)
class NewImage:
    """The metadata changed; `deleted_topics` are gone, and so are the offsets committed for them."""

    image: MetadataImage
    deleted_topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NewSettings:
    """Settings of the node or of groups changed."""

    settings: Any
