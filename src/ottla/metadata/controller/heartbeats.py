"""`BrokerHeartbeatManager`: the sessions of brokers, and their way through fencing and controlled shutdown.

Soft state of the active controller: it is not in the metadata log, and a new controller starts with a full
session for every broker. Times are nanoseconds of a monotonic clock, passed in. Invariant: a broker in
controlled shutdown is not fenced; fencing it ends the controlled shutdown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest


class BrokerControlState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"

    @property
    def fenced(self) -> bool:
        return self in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)


@dataclass(slots=True)
class _Broker:
    id: int
    fenced: bool
    metadata_offset: int = -1  # how far the broker has read the metadata log
    # What the active brokers must have read before it may shut down; -1 outside of a controlled shutdown.
    controlled_shutdown_offset: int = -1

    @property
    def shutting_down(self) -> bool:
        return self.controlled_shutdown_offset >= 0

    @property
    def state(self) -> BrokerControlState:
        if self.shutting_down:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.FENCED if self.fenced else BrokerControlState.UNFENCED


@dataclass(slots=True)
class _Session:
    contact_ns: int  # the session runs from here
    heard_ns: int | None  # when the last heartbeat to this controller came; None before the first one


class BrokerHeartbeatManager:
    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ns: Final = session_timeout_ms * 1_000_000
        self._brokers: dict[int, _Broker] = {}
        self._sessions: dict[tuple[int, int], _Session] = {}  # by (broker, epoch)

    def track(self, broker: int, epoch: int, now_ns: int) -> None:
        """Note a heartbeat of the broker."""
        self._sessions[(broker, epoch)] = _Session(now_ns, now_ns)

    def inherit_session(self, broker: int, epoch: int, now_ns: int) -> None:
        """Give the broker a session because it had one with the previous controller."""
        self._sessions[(broker, epoch)] = _Session(now_ns, None)

    def sessions_without_heartbeat(self) -> list[tuple[int, int]]:
        """The (broker, epoch) of the brokers that have not sent a heartbeat to this controller yet."""
        return [key for key, session in self._sessions.items() if session.heard_ns is None]

    def has_valid_session(self, broker: int, epoch: int, now_ns: int) -> bool:
        session = self._sessions.get((broker, epoch))
        return session is not None and not self._is_expired(session, now_ns)

    def _is_expired(self, session: _Session, now_ns: int) -> bool:
        return session.contact_ns + self._session_timeout_ns < now_ns

    def maybe_remove_expired(self, now_ns: int) -> tuple[int, int] | None:
        """Remove and return one (broker, epoch) whose session has expired; None if there is none."""
        for key, session in self._sessions.items():
            if self._is_expired(session, now_ns):
                del self._sessions[key]
                return key
        return None

    def end_session(self, broker: int, epoch: int) -> None:
        """Remove the session of a broker whose process has ended."""
        self._sessions.pop((broker, epoch), None)

    def sessions_silent_since(self, since_ns: int) -> list[tuple[int, int]]:
        """The (broker, epoch) of the sessions without a heartbeat since `since_ns`, time in which this
        controller did not run left out.
        """
        return [key for key, session in self._sessions.items() if session.contact_ns < since_ns]

    def sessions_not_heard_since(self, since_ns: int) -> list[tuple[int, int]]:
        """The (broker, epoch) of the sessions of which no heartbeat has come since `since_ns`, for whatever
        reason.
        """
        return [
            key
            for key, session in self._sessions.items()
            if session.heard_ns is None or session.heard_ns < since_ns
        ]

    def extend_sessions(self, gap_ns: int) -> None:
        """Prolong all sessions: the controller could not read heartbeats for `gap_ns`."""
        for session in self._sessions.values():
            session.contact_ns += gap_ns

    def register(self, broker: int, *, fenced: bool) -> None:
        known = self._brokers.get(broker)
        offset = -1
        if known is None:
            known = self._brokers[broker] = _Broker(broker, fenced)
        elif known.fenced != fenced:
            offset = known.metadata_offset
        self.touch(broker, fenced=fenced, metadata_offset=offset)

    def touch(self, broker: int, *, fenced: bool, metadata_offset: int) -> None:
        known = self._brokers[broker]
        known.fenced = fenced
        known.metadata_offset = metadata_offset
        if fenced:
            known.controlled_shutdown_offset = -1

    def remove(self, broker: int) -> None:
        self._brokers.pop(broker, None)

    def begin_controlled_shutdown(self, broker: int, offset: int) -> None:
        """Let the broker shut down once every active broker has read the metadata log up to `offset`."""
        known = self._brokers[broker]
        assert not known.fenced, f"broker {broker} is fenced and cannot enter controlled shutdown"
        if known.controlled_shutdown_offset < 0:
            known.controlled_shutdown_offset = offset

    def calculate_next_broker_state(
        self, request: BrokerHeartbeatRequest, registration_offset: int, has_leaderships: Callable[[], bool]
    ) -> tuple[BrokerControlState, BrokerControlState]:
        """The current state of the broker, and the next one by what its heartbeat asks for."""
        broker = self._brokers[request.broker_id]
        current = broker.state
        if current is BrokerControlState.FENCED:
            if request.want_shut_down:
                return current, BrokerControlState.SHUTDOWN_NOW
            if not request.want_fence and request.current_metadata_offset >= registration_offset:
                return current, BrokerControlState.UNFENCED
            return current, current
        if current is BrokerControlState.UNFENCED:
            if request.want_fence:
                now = request.want_shut_down
                return current, BrokerControlState.SHUTDOWN_NOW if now else BrokerControlState.FENCED
            if request.want_shut_down:
                leads = has_leaderships()
                return (
                    current,
                    BrokerControlState.CONTROLLED_SHUTDOWN if leads else BrokerControlState.SHUTDOWN_NOW,
                )
            return current, current
        if has_leaderships() or broker.controlled_shutdown_offset > self._lowest_active_offset():
            return current, current
        return current, BrokerControlState.SHUTDOWN_NOW

    def _lowest_active_offset(self) -> int:
        offsets = [b.metadata_offset for b in self._brokers.values() if not b.fenced and not b.shutting_down]
        return min(offsets, default=2**63 - 1)
