"""`ottla quorum`: the controllers' quorum, and how far each of its members has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.cli.declare import command
from ottla.cli.options import DEFAULT_BOOTSTRAP_SERVERS, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout
from ottla.cli.output import print_json, print_pairs, print_table, time_text
from ottla.cli.session import with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.cluster import Quorum
    from ottla.protocol.messages.describe_quorum import ReplicaState

HELP: Final = "Describe the quorum of controllers."


@command(None, "quorum")
def app(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Describe the quorum of controllers."""

    async def work(admin: Admin) -> Quorum:
        return await admin.cluster.quorum()

    found = with_admin(bootstrap, timeout, work)
    leader_end = max(
        (v.log_end_offset for v in found.voters if v.replica_id == found.leader_id), default=None
    )
    members = [
        *(_member(each, "voter", found, leader_end) for each in found.voters),
        *(_member(each, "observer", found, leader_end) for each in found.observers),
    ]
    if as_json:
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
    print()
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


def _member(replica: ReplicaState, role: str, quorum: Quorum, leader_end: int | None) -> dict[str, Any]:
    from ottla.protocol.json_form import uuid_text
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
