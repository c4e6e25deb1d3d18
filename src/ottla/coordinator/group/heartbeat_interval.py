"""How soon a member sends its next heartbeat: the interval that the coordinator puts into its response.

Members of consumer, share and streams groups learn of a new assignment only by their heartbeats, so a
rebalance takes a few intervals. The coordinator therefore asks members to come back sooner while that helps:
a group that is not settled waits for its members' next steps, and a group that has just changed will often
change again, as its members start one after the other. Each interval is a fraction of the time since the
last change, so a member waits at most that fraction longer than necessary, a stable group is back at the
configured interval by itself, and so is one that waits for a member that does not come.

Invariant: an interval is never above the configured one, and a group sends at most `MOST_PER_SECOND`
heartbeats a second because of this rule.
"""

from __future__ import annotations

from typing import Final

SHORTEST_MS: Final = 100
MOST_PER_SECOND: Final = 200
_SETTLED_FRACTION: Final = 4
_UNSETTLED_FRACTION: Final = 16


def heartbeat_interval_ms(
    configured_ms: int, *, members: int, is_settled: bool, since_change_ms: int | None
) -> int:
    """The interval for a member of a group of `members`.

    `is_settled` says that the target assignment is that of the group's epoch, and that all members have
    reached it. `since_change_ms` is the time since the group's epoch, its target or a member's assignment
    changed; None if that was before this coordinator loaded the group.
    """
    if since_change_ms is None:
        return configured_ms
    fraction = _SETTLED_FRACTION if is_settled else _UNSETTLED_FRACTION
    shortest_ms = max(SHORTEST_MS, members * 1000 // MOST_PER_SECOND)
    return min(configured_ms, max(shortest_ms, since_change_ms // fraction))
