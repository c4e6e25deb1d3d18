"""Feature levels: the versions of metadata and protocols that a cluster has agreed on.

`metadata.version` decides which records, and which versions of them, may be written; the other features
switch protocols on (groups, transactions, shares). The table is that of Apache Kafka 4.4. New clusters begin
at the levels of 4.3.1, so that a directory formatted here can be used by Apache Kafka 4.3.1 and the other way
round, as long as no level is raised. Invariant: a level that is finalised lies within the range that every
registered node supports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

F = TypeVar("F")

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The levels of a feature that a node supports, both ends included."""

    min: int
    max: int

    def __contains__(self, level: int) -> bool:
        return self.min <= level <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


DISABLED: Final = VersionRange(0, 0)


@dataclass(frozen=True, slots=True, order=True)
class MetadataVersion:
    """One level of `metadata.version`; `changed` says that its records differ from those of the level
    before.
    """

    level: int
    release: str
    changed: bool

    def __str__(self) -> str:
        return self.release

    @property
    def scram(self) -> bool:
        return self.level >= 11

    @property
    def leader_epoch_bump_on_isr_shrink(self) -> bool:
        return self.level < 12

    @property
    def transactions(self) -> bool:
        return self.level >= 13

    @property
    def delegation_tokens(self) -> bool:
        return self.level >= 14

    @property
    def controller_registration(self) -> bool:
        return self.level >= 15

    @property
    def directory_assignment(self) -> bool:
        return self.level >= 17

    @property
    def eligible_leader_replicas(self) -> bool:
        return self.level >= 23

    @property
    def cordoned_log_dirs(self) -> bool:
        return self.level >= 30

    @property
    def address_ranges_in_acls(self) -> bool:
        return self.level >= 32

    @property
    def controller_unregistration(self) -> bool:
        return self.level >= 33

    @property
    def register_broker_record_version(self) -> int:
        if self.cordoned_log_dirs:
            return 4
        if self.directory_assignment:
            return 3
        return 2 if self.level >= 8 else 1

    @property
    def partition_record_version(self) -> int:
        """The version of PartitionRecord and of PartitionChangeRecord, which grew by the same fields."""
        if self.eligible_leader_replicas:
            return 2
        return 1 if self.directory_assignment else 0


METADATA_VERSIONS: Final[Mapping[int, MetadataVersion]] = {
    version.level: version
    for version in (
        MetadataVersion(7, "3.3-IV3", True),
        MetadataVersion(8, "3.4-IV0", True),
        MetadataVersion(9, "3.5-IV0", False),
        MetadataVersion(10, "3.5-IV1", False),
        MetadataVersion(11, "3.5-IV2", True),
        MetadataVersion(12, "3.6-IV0", False),
        MetadataVersion(13, "3.6-IV1", True),
        MetadataVersion(14, "3.6-IV2", True),
        MetadataVersion(15, "3.7-IV0", True),
        MetadataVersion(16, "3.7-IV1", False),
        MetadataVersion(17, "3.7-IV2", True),
        MetadataVersion(18, "3.7-IV3", False),
        MetadataVersion(19, "3.7-IV4", False),
        MetadataVersion(20, "3.8-IV0", False),
        MetadataVersion(21, "3.9-IV0", False),
        MetadataVersion(22, "4.0-IV0", False),
        MetadataVersion(23, "4.0-IV1", True),
        MetadataVersion(24, "4.0-IV2", False),
        MetadataVersion(25, "4.0-IV3", False),
        MetadataVersion(26, "4.1-IV0", False),
        MetadataVersion(27, "4.1-IV1", False),
        MetadataVersion(28, "4.2-IV0", False),
        MetadataVersion(29, "4.2-IV1", False),
        MetadataVersion(30, "4.3-IV0", True),
        MetadataVersion(31, "4.4-IV0", False),
        MetadataVersion(32, "4.4-IV1", True),
        MetadataVersion(33, "4.4-IV2", True),
    )
}
MINIMUM_METADATA_VERSION: Final = METADATA_VERSIONS[7]
LATEST_METADATA_VERSION: Final = METADATA_VERSIONS[33]
# What new clusters begin at; an operator raises it.
DEFAULT_METADATA_VERSION: Final = METADATA_VERSIONS[30]

SUPPORTED_FEATURES: Final[Mapping[str, VersionRange]] = {
    METADATA_VERSION: VersionRange(MINIMUM_METADATA_VERSION.level, LATEST_METADATA_VERSION.level),
    KRAFT_VERSION: VersionRange(0, 1),
    TRANSACTION_VERSION: VersionRange(0, 2),
    GROUP_VERSION: VersionRange(0, 1),
    ELIGIBLE_LEADER_REPLICAS_VERSION: VersionRange(0, 1),
    SHARE_VERSION: VersionRange(0, 2),
    STREAMS_VERSION: VersionRange(0, 1),
}

# The metadata.version from which a freshly formatted cluster starts with the feature's level (index = level).
_BOOTSTRAP_LEVELS: Final[Mapping[str, tuple[int, ...]]] = {
    TRANSACTION_VERSION: (7, 24, 24),
    GROUP_VERSION: (7, 22),
    ELIGIBLE_LEADER_REPLICAS_VERSION: (7, 26),
    SHARE_VERSION: (7, 28, 31),
    STREAMS_VERSION: (7, 29),
}

# (feature, level) -> the other levels it needs.
_DEPENDENCIES: Final[Mapping[tuple[str, int], Mapping[str, int]]] = {
    (ELIGIBLE_LEADER_REPLICAS_VERSION, 1): {METADATA_VERSION: 23},
}


def metadata_version(level: int) -> MetadataVersion:
    """The MetadataVersion of a feature level; ValueError names the levels that exist."""
    version = METADATA_VERSIONS.get(level)
    if version is None:
        raise ValueError(
            f"metadata.version {level} is unknown; {SUPPORTED_FEATURES[METADATA_VERSION]} are supported"
        )
    return version


def supported_features(kind: Callable[..., F]) -> list[F]:
    """The supported features as a registration request has them; a broker's and a controller's have a class
    each, which is `kind`.
    """
    return [
        kind(name=name, min_supported_version=levels.min, max_supported_version=levels.max)
        for name, levels in SUPPORTED_FEATURES.items()
    ]


def bootstrap_levels(version: MetadataVersion = DEFAULT_METADATA_VERSION) -> dict[str, int]:
    """The levels a newly formatted cluster starts with, metadata.version first, then by name; level 0 is
    left out.
    """
    levels = {METADATA_VERSION: version.level}
    for name in sorted(_BOOTSTRAP_LEVELS):
        level = max(lvl for lvl, since in enumerate(_BOOTSTRAP_LEVELS[name]) if since <= version.level)
        if level > 0:
            levels[name] = level
    return levels


def missing_dependency(name: str, level: int, levels: Mapping[str, int]) -> str | None:
    """Say why `name` cannot be at `level` beside the other `levels`; None if it can."""
    if level >= 1 and levels.get(METADATA_VERSION, 0) < MINIMUM_METADATA_VERSION.level:
        return (
            f"{name} {level} needs metadata.version {MINIMUM_METADATA_VERSION.level} "
            f"({MINIMUM_METADATA_VERSION}) or later"
        )
    for other, needed in _DEPENDENCIES.get((name, level), {}).items():
        if levels.get(other, 0) < needed:
            return f"{name} {level} needs {other} {needed} or later"
    return None


def metadata_changed_between(a: MetadataVersion, b: MetadataVersion) -> bool:
    """Whether records written at the higher of two levels may not be understood at the lower."""
    low, high = sorted((a.level, b.level))
    return any(version.changed for level, version in METADATA_VERSIONS.items() if low < level <= high)
