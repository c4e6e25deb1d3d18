"""What a consumer and its membership in a group want of each other, whichever protocol the group speaks."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ottla.client.cluster_metadata import ClusterMetadata
from ottla.client.consumer.config import ConsumerConfig
from ottla.client.group_offsets import GroupMemberIdentity
from ottla.protocol.names import TopicPartition

__all__ = [
    "MembershipOwner",
    "GroupMembership",
    "OnStalled",
    "RebalanceListener",
    "Stalled",
    "Subscription",
    "notify_listener",
    "report_stall",
]

log = logging.getLogger(__name__)


class RebalanceListener(Protocol):
    """Told within `poll`, before partitions are given up and after new ones came; plain or async. Lost
    partitions may belong to another member already: nothing can be committed for them any more.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These are about to go; what was read of them can still be committed."""
        ...

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These have come, in addition to those that stayed."""
        ...

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These went without notice; whoever has no such method gets `on_partitions_revoked`."""
        ...


class Stalled(NamedTuple):
    """A member of a group whose user has not polled for `silent_ms`, and which therefore leaves."""

    group_id: str
    member_id: str
    silent_ms: int


OnStalled = Callable[[Stalled], object]


def report_stall(stalled: Stalled, config: ConsumerConfig, on_stalled: OnStalled | None) -> None:
    """Says in the log, and to the user if he wants to hear it, why a member leaves."""
    log.warning(
        "group %r: no poll for %d ms (max.poll.interval.ms=%d), so this member leaves; "
        "poll more often, or ask for fewer records at a time (max.poll.records)",
        stalled.group_id,
        stalled.silent_ms,
        config.max_poll_interval_ms,
    )
    if on_stalled is not None:
        try:
            on_stalled(stalled)
        except Exception:
            log.exception("group %r: on_stalled failed", stalled.group_id)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Names, or a pattern that whole names must match."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def matching(self, view: ClusterMetadata, *, internal: bool) -> list[str]:
        """The topics of it that exist."""
        if self.pattern is None:
            return [t for t in self.topics if t in view.topics and not view.topics[t].error]
        whole = re.compile(self.pattern)
        return sorted(
            name
            for name, info in view.topics.items()
            if whole.fullmatch(name) and not info.error and (internal or not info.is_internal)
        )


class MembershipOwner(Protocol):
    """What a membership may do with its consumer."""

    def owned_partitions(self) -> list[TopicPartition]: ...

    def assign_from_subscribed(self, partitions: Iterable[TopicPartition]) -> None:
        """From now on exactly these partitions."""
        ...

    async def commit_before_revocation(self) -> None:
        """The last commit before partitions go, if commits are automatic."""
        ...

    def wake(self) -> None:
        """There is work for the next `poll`."""
        ...


class GroupMembership(Protocol):
    @property
    def member(self) -> GroupMemberIdentity: ...

    @property
    def is_stable(self) -> bool:
        """Whether the member has what the group gave it, and nothing is being moved."""
        ...

    async def start(self) -> None: ...

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None: ...

    async def poll(self) -> None:
        """Does what has to be done within `poll`: listeners, and taking over what was assigned."""
        ...

    def on_poll(self) -> None:
        """The user is alive."""
        ...

    def on_metadata_update(self) -> None: ...

    async def refresh_epoch(self) -> bool:
        """After a commit was refused as stale: waits for a newer epoch, or generation. False if there is none
        to expect.
        """
        ...

    async def leave(self) -> None: ...


async def notify_listener(
    listener: RebalanceListener | None, event: str, partitions: Iterable[TopicPartition]
) -> None:
    found = sorted(partitions)
    call = getattr(listener, event, None)
    if call is None and event == "on_partitions_lost":
        call = getattr(listener, "on_partitions_revoked", None)
    if call is None or not (found or event == "on_partitions_assigned"):
        return
    result = call(found)
    if inspect.isawaitable(result):
        await result
