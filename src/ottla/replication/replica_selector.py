"""Fetching from the closest replica (KIP-392): to whom a leader sends a consumer that names its rack.

Only replicas that are in sync and have the offset asked for come into question: one that lags would hold
the consumer back for as long as it is chosen. If the leader itself is in the consumer's rack it stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.replication.partition import Partition


def nearest_replica(
    partition: Partition, rack: str, racks: Mapping[int, str | None], offset: int, now_ms: int
) -> int | None:
    """The follower that a consumer of this rack should read from; None: the leader.

    ``racks`` has the brokers that the consumer can reach, with theirs.
    """
    if not rack or not partition.is_leader or racks.get(partition.broker_id) == rack:
        return None
    isr = partition.isr
    near = [
        follower
        for follower in partition.followers
        if follower.broker_id in isr
        and racks.get(follower.broker_id) == rack
        and 0 <= follower.log_start_offset <= offset <= follower.log_end_offset
    ]
    if not near:
        return None
    best = max(near, key=lambda each: (each.log_end_offset, each.last_caught_up_ms - now_ms, -each.broker_id))
    return best.broker_id
