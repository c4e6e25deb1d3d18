"""`ottla quorum`: the quorum of controllers, the progress of its members, and its voters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Option, command
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.options import (
    COMMON,
    Common,
)
from ottla.cli.output import print_json, print_line, print_pairs, print_table, time_text
from ottla.cli.session import with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.cluster import Quorum
    from ottla.protocol.messages.describe_quorum import ReplicaState
    from ottla.runtime.address import Address

HELP: Final = "Describe the quorum of controllers, and change its voters."


@command(None, "quorum")
def app(
    common: Common = COMMON,
    add: Annotated[
        str | None,
        Option("--add", metavar="ID@HOST:PORT", help="Add a controller that observes the quorum as a voter."),
    ] = None,
    remove: Annotated[
        int | None, Option("--remove", metavar="ID", help="Remove a voter from the quorum.")
    ] = None,
    listener: Annotated[
        str, Option("--listener", metavar="NAME", help="The name of the new voter's listener.")
    ] = "CONTROLLER",
) -> None:
    """Describe the quorum of controllers, or change its voters.

    Voters can be changed if they are in the metadata log: in a cluster that was formatted so, or whose
    kraft.version was raised to 1.
    """
    if add is not None and remove is not None:
        raise WrongUsage("--add and --remove exclude each other")
    new = None if add is None else _parse_voter(add)

    async def work(admin: Admin) -> Quorum:
        found = await admin.cluster.quorum()
        if new is not None:
            id, address = new
            directory = _observer_directory(id, found)
            await admin.cluster.add_voter(id, directory, {listener: address})
        elif remove is not None:
            directory = _directory(remove, found.voters, "no voter of the quorum")
            await admin.cluster.remove_voter(remove, directory)
        else:
            return found
        return await admin.cluster.quorum()

    found = with_admin(common, work)
    leader_end = max(
        (v.log_end_offset for v in found.voters if v.replica_id == found.leader_id), default=None
    )
    members = [
        *(_member(each, "voter", found, leader_end) for each in found.voters),
        *(_member(each, "observer", found, leader_end) for each in found.observers),
    ]
    if common.as_json:
        print_json(
            {
                "leader": found.leader_id,
                "epoch": found.leader_epoch,
                "high_watermark": found.high_watermark,
                "members": members,
            }
        )
        return
    print_pairs(
        [("leader", found.leader_id), ("epoch", found.leader_epoch), ("high watermark", found.high_watermark)]
    )
    print_line()
    print_table(
        ["node", "role", "log end", "lag", "last fetch", "caught up"],
        [
            (
                m["node"],
                m["role"],
                m["log_end_offset"],
                m["lag"],
                time_text(m["last_fetch_ms"]),
                time_text(m["last_caught_up_ms"]),
            )
            for m in members
        ],
    )


def _parse_voter(text: str) -> tuple[int, Address]:
    from ottla.runtime.address import Address

    id, at, where = text.partition("@")
    host, colon, port = where.rpartition(":")
    if not (at and colon and host and id.isdecimal() and port.isdecimal()):
        raise WrongUsage(f"--add {text}: expected ID@HOST:PORT such as 4@kafka-4:9093")
    return int(id), Address(host.strip("[]"), int(port))


def _observer_directory(id: int, quorum: Quorum) -> bytes:
    """The directory id of an observer. A node with a replaced directory is an observer and still a voter."""
    observes = any(each.replica_id == id for each in quorum.observers)
    if not observes and any(each.replica_id == id for each in quorum.voters):
        raise CliError(f"node {id} is already a voter")
    return _directory(id, quorum.observers, "not an observer of the quorum; is it running?")


def _directory(id: int, replicas: Sequence[ReplicaState], problem: str) -> bytes:
    for replica in replicas:
        if replica.replica_id == id:
            return bytes(replica.replica_directory_id)
    raise CliError(f"node {id} is {problem}")


def _member(replica: ReplicaState, role: str, quorum: Quorum, leader_end: int | None) -> dict[str, Any]:
    from ottla.protocol.names import uuid_text
    from ottla.protocol.schema import ZERO_UUID

    known = replica.log_end_offset >= 0
    directory = replica.replica_directory_id
    return {
        "node": replica.replica_id,
        "directory_id": uuid_text(directory) if directory != ZERO_UUID else None,
        "role": "leader" if replica.replica_id == quorum.leader_id and role == "voter" else role,
        "log_end_offset": replica.log_end_offset if known else None,
        "lag": leader_end - replica.log_end_offset if known and leader_end is not None else None,
        "last_fetch_ms": replica.last_fetch_timestamp if replica.last_fetch_timestamp >= 0 else None,
        "last_caught_up_ms": replica.last_caught_up_timestamp
        if replica.last_caught_up_timestamp >= 0
        else None,
    }
