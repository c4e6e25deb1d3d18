"""What the parts of a group machine share: the groups, the deadlines, the settings, the topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.runtime.effects import Effects, EventTime
from ottla.coordinator.runtime.timers import CoordinatorTimer
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaError

Group: TypeAlias = ClassicGroup | ConsumerGroup
Action: TypeAlias = Callable[[EventTime], Effects]


class GroupState:
    __slots__ = ("groups", "image", "new_id", "settings", "timers")

    def __init__(self, settings: GroupSettings, image: MetadataImage, new_id: Callable[[], str]) -> None:
        self.groups: dict[str, Group] = {}
        self.timers: CoordinatorTimer[Action] = CoordinatorTimer()  # keys begin with the group id
        self.settings = settings
        self.image = image
        self.new_id = new_id  # ids for members, never twice the same

    def group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        return group

    def drop(self, group_id: str) -> None:
        """Forget the group and its deadlines."""
        self.groups.pop(group_id, None)
        self.timers.cancel_if(lambda key: isinstance(key, tuple) and key[0] == group_id)
