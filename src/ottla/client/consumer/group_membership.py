"""The contract between a consumer and its membership in a group, for both group protocols."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ottla.client.cluster_metadata import ClusterMetadata
from ottla.client.group_offsets import GroupMemberIdentity
from ottla.protocol.names import TopicPartition

log = logging.getLogger(__name__)


class RebalanceListener(Protocol):
    """Called within `poll`, before partitions are revoked and after new ones are assigned; plain or async.
    Lost partitions may belong to another member already: their offsets can no longer be committed.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are about to be revoked; their offsets can still be committed."""
        ...

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions were assigned, in addition to those that stayed."""
        ...

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions were lost without notice. A listener without this method gets
        `on_partitions_revoked`.
        """
        ...


class Stalled(NamedTuple):
    """A member of a group whose user has not polled for `silent_ms`, and which therefore leaves the group."""

    group_id: str
    member_id: str
    silent_ms: int


OnStalled = Callable[[Stalled], object]


def report_stall(stalled: Stalled, max_poll_interval_ms: int, on_stalled: OnStalled | None) -> None:
    """Log why a member leaves, and call `on_stalled` if there is one."""
    log.warning(
        "group %r: no poll for %d ms (max.poll.interval.ms=%d), so this member leaves; "
        "poll more often, or ask for fewer records at a time (max.poll.records)",
        stalled.group_id,
        stalled.silent_ms,
        max_poll_interval_ms,
    )
    if on_stalled is not None:
        try:
            on_stalled(stalled)
        except Exception:
            log.exception("group %r: on_stalled failed", stalled.group_id)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topic names, or a pattern that whole names must match."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def matching(self, view: ClusterMetadata, *, internal: bool) -> list[str]:
        """Return the subscribed topics that exist."""
        if self.pattern is None:
            return [t for t in self.topics if t in view.topics and not view.topics[t].error]
        whole = re.compile(self.pattern)
        return sorted(
            name
            for name, info in view.topics.items()
            if whole.fullmatch(name) and not info.error and (internal or not info.is_internal)
        )


class MembershipOwner(Protocol):
    """The consumer as its group membership sees it."""

    def owned_partitions(self) -> list[TopicPartition]: ...

    def assign_from_subscribed(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions from now on."""
        ...

    async def commit_before_revocation(self) -> None:
        """Make the last commit before partitions are revoked, if commits are automatic."""
        ...

    def wake(self) -> None:
        """Let `poll` return to the membership, which has work."""
        ...


class GroupMembership(Protocol):
    @property
    def member(self) -> GroupMemberIdentity: ...

    @property
    def is_stable(self) -> bool:
        """Whether the member has what the group assigned to it, and no rebalance is in progress."""
        ...

    async def start(self) -> None: ...

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None: ...

    async def poll(self) -> None:
        """Do the work that has to be done in the user's `poll`: call listeners, and apply the assignment."""
        ...

    def on_poll(self) -> None:
        """Note that the user has polled."""
        ...

    def on_metadata_update(self) -> None: ...

    async def refresh_epoch(self) -> bool:
        """Wait for a newer epoch or generation after a commit was refused as stale. False if none is to be
        expected.
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
