"""Where a reset would put the offsets of a group: the plan, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.places import Place, resolve
from ottla.cli.session import topic_or_fail

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.protocol.names import TopicPartition


@dataclass(frozen=True, slots=True)
class Target:
    """One of three: a place, a distance from the committed offset, or offsets that are given."""

    place: Place | None = None
    shift: int | None = None
    offsets: Mapping[tuple[str, int], int] | None = None


def read_offsets_file(path: str) -> dict[tuple[str, int], int]:
    """Lines of topic,partition,offset."""
    import csv

    found: dict[tuple[str, int], int] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if not row:
                continue
            if len(row) != 3 or not row[1].strip().isdecimal() or not row[2].strip().isdecimal():
                raise WrongUsage(f"{path}, line {number}: expected topic,partition,offset")
            found[row[0].strip(), int(row[1])] = int(row[2])
    if not found:
        raise WrongUsage(f"{path}: there is nothing in it")
    return found


async def plan_reset(
    admin: Admin, group: str, target: Target, scope: Sequence[tuple[str, list[int] | None]]
) -> list[dict[str, Any]]:
    """For each partition (`at`) the committed offset (`current`) and the new one, kept within what the
    partition holds. Without a scope: all that the group has committed.
    """
    from ottla.cli.places import Kind
    from ottla.protocol.names import TopicPartition

    committed = {p: c.offset for p, c in (await admin.groups.offsets(group)).items()}
    if target.offsets is not None:
        wanted = {TopicPartition(*p): Place(Kind.OFFSET, o) for p, o in target.offsets.items()}
    else:
        chosen = await _chosen(admin, group, committed, scope)
        if target.place is not None:
            wanted = dict.fromkeys(chosen, target.place)
        else:
            missing = [p for p in chosen if p not in committed]
            if missing:
                raise CliError(
                    f"group {group} has committed nothing for {missing[0]}: nothing to shift or keep"
                )
            wanted = {p: Place(Kind.OFFSET, max(committed[p] + (target.shift or 0), 0)) for p in chosen}
    for topic in {p.topic for p in wanted}:
        await topic_or_fail(admin, topic)
    offsets = await resolve(admin, wanted)
    return [{"at": p, "current": committed.get(p), "new": offsets[p]} for p in sorted(offsets)]


async def _chosen(
    admin: Admin,
    group: str,
    committed: Mapping[TopicPartition, int],
    scope: Sequence[tuple[str, list[int] | None]],
) -> list[TopicPartition]:
    from ottla.protocol.names import TopicPartition

    if not scope:
        if not committed:
            raise CliError(f"group {group} has committed nothing; name topics with --topic")
        return sorted(committed)
    chosen: list[TopicPartition] = []
    for topic, wanted in scope:
        info = await topic_or_fail(admin, topic)
        indexes = wanted if wanted is not None else [p.partition for p in info.partitions]
        for index in indexes:
            if index >= len(info.partitions):
                raise CliError(f"topic {topic} has partitions 0 to {len(info.partitions) - 1}, not {index}")
        chosen += [TopicPartition(topic, index) for index in indexes]
    return list(dict.fromkeys(chosen))
