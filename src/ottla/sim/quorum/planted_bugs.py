"""Deliberate bugs of a quorum, as real implementations had them, to test whether the simulator finds them.

A planted bug replaces one function of the quorum for the duration of a run. For each of them some seed must
end in a violation.
"""

# ruff: noqa: ARG001, ARG005 - a replacement has the arguments of what it replaces

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

from ottla.raft import machine as machine_module
from ottla.raft.driver import kafka_raft_client as client_module
from ottla.raft.driver import quorum_state_store
from ottla.raft.driver.kafka_raft_log import KafkaRaftLog
from ottla.raft.effects import Persist
from ottla.raft.log import Validity, ValidOffsetAndEpoch
from ottla.raft.machine import KafkaRaftMachine
from ottla.raft.messages import Vote, VoteReply
from ottla.raft.progress import ProgressTracker
from ottla.raft.quorum_state import QuorumState
from ottla.raft.request_manager import RequestManager
from ottla.raft.states import CandidateState, EpochElection, LeaderState, ProspectiveState, ResignedState
from ottla.runtime.disk import write_file
from ottla.sim.nemesis import NemesisConfig
from ottla.sim.quorum.run import QuorumScenario

Patch = tuple[Any, str, Any]


def _vote_not_synced() -> list[Patch]:
    def write(disk: Any, path: str, data: Any) -> None:
        write_file(disk, path, data, sync=False)

    return [(quorum_state_store, "write_file", write)]


def _vote_sent_before_it_is_written() -> list[Patch]:
    original = client_module.KafkaRaftClient._perform

    def perform(self: client_module.KafkaRaftClient, effect: Any) -> None:
        original(self, effect)
        if isinstance(effect, Persist):
            self._persisting = False

    return [(client_module.KafkaRaftClient, "_perform", perform)]


def _vote_forgotten_at_restart() -> list[Patch]:
    from ottla.sim.quorum import member

    return [(member, "read_election_state", lambda disk, dir: None)]


def _two_votes_an_epoch() -> list[Patch]:
    return [(KafkaRaftMachine, "_add_voted_state", lambda self, candidate, now_ms: None)]


def _votes_for_any_log() -> list[Patch]:
    return [(machine_module, "is_up_to_date", lambda candidate, ours: True)]


def _epoch_not_checked() -> list[Patch]:
    """Counts votes of another election in this one."""
    original = KafkaRaftMachine._handle_vote_response

    def handle(self: KafkaRaftMachine, voter_id: int, request: Vote, reply: VoteReply) -> None:
        pre_vote = isinstance(self.quorum.state, ProspectiveState)
        original(self, voter_id, replace(request, epoch=self.quorum.epoch, pre_vote=pre_vote), reply)

    return [
        (KafkaRaftMachine, "_handle_vote_response", handle),
        (RequestManager, "reset_all", lambda self: None),
    ]


def _commit_by_older_epochs() -> list[Patch]:
    original = ProgressTracker.__init__

    def init(self: ProgressTracker, *args: Any, epoch_start_offset: int, **options: Any) -> None:
        original(self, *args, epoch_start_offset=-1, **options)

    return [(ProgressTracker, "__init__", init)]


def _acknowledged_before_a_majority() -> list[Patch]:
    def maybe_update_high_watermark(self: ProgressTracker) -> bool:
        end = max(progress.end_offset for progress in self._voter_progress())
        if end <= self._epoch_start_offset or (
            self.high_watermark is not None and end <= self.high_watermark
        ):
            return False
        self.high_watermark = end
        return True

    return [(ProgressTracker, "maybe_update_high_watermark", maybe_update_high_watermark)]


def _follower_does_not_sync() -> list[Patch]:
    def prepare(self: KafkaRaftLog) -> None:
        return None

    return [
        (KafkaRaftLog, "prepare_flush", prepare),
        (KafkaRaftLog, "durable_end", property(lambda self: self.end.offset)),
    ]


def _divergence_not_noticed() -> list[Patch]:
    return [
        (
            machine_module,
            "validate_offset_and_epoch",
            lambda log, end: ValidOffsetAndEpoch(Validity.VALID, end),
        )
    ]


def _cuts_too_much() -> list[Patch]:
    return [(machine_module, "truncation_offset", lambda log, diverging: max(log.high_watermark - 1, 0))]


def _leads_its_old_epoch_again() -> list[Patch]:
    original = QuorumState._initial_state

    def initial(self: QuorumState, election: Any, now_ms: int) -> Any:
        state = original(self, election, now_ms)
        voters = self.voters
        if isinstance(state, ResignedState) and voters is not None and state.voted is not None:
            state = CandidateState(
                state.epoch, state.deadline_ms, EpochElection(voters, self.local.key), self.local.key
            )
        return state

    def handle(self: KafkaRaftMachine, request: Vote, now_ms: int) -> VoteReply:
        # Without this refusal of a candidate that has led its epoch already.
        if not request.pre_vote and request.last.epoch == request.epoch:
            request = replace(request, last=request.last._replace(epoch=request.epoch - 1))
        return _handle_vote(self, request, now_ms)

    return [(QuorumState, "_initial_state", initial), (KafkaRaftMachine, "_handle_vote_request", handle)]


_handle_vote = KafkaRaftMachine._handle_vote_request


def _leader_never_gives_up() -> list[Patch]:
    original = QuorumState.transition_to_resigned

    def resign(self: QuorumState, now_ms: int) -> None:
        if self.is_shutting_down:
            original(self, now_ms)
        elif isinstance(self.state, LeaderState):
            self.state.progress.check_quorum_deadline_ms = now_ms + 1_000_000

    return [(QuorumState, "transition_to_resigned", resign)]


def _majority_of_half() -> list[Patch]:
    from ottla.raft.voters import VoterSet

    return [(VoterSet, "majority", property(lambda self: max(len(self.voters) // 2, 1)))]


QUORUM_BUGS: Mapping[str, Callable[[], list[Patch]]] = {
    "vote-not-synced": _vote_not_synced,
    "vote-sent-before-it-is-written": _vote_sent_before_it_is_written,
    "vote-forgotten-at-restart": _vote_forgotten_at_restart,
    "two-votes-an-epoch": _two_votes_an_epoch,
    "votes-for-any-log": _votes_for_any_log,
    "epoch-not-checked": _epoch_not_checked,
    "commit-by-older-epochs": _commit_by_older_epochs,
    "acknowledged-before-a-majority": _acknowledged_before_a_majority,
    "log-not-synced": _follower_does_not_sync,
    "divergence-not-noticed": _divergence_not_noticed,
    "cuts-too-much": _cuts_too_much,
    "leads-its-old-epoch-again": _leads_its_old_epoch_again,
    "majority-of-half": _majority_of_half,
    "leader-never-gives-up": _leader_never_gives_up,
}


# Scenarios that show a bug within a few seeds; others find it with more seeds.
_ELECTIONS = QuorumScenario(
    voters=3,
    observers=0,
    dynamic=False,
    timeout_scale=0.05,
    append_every_s=0.5,
    nemesis=NemesisConfig(
        interval_s=0.3,
        longest_s=0.5,
        ambush={"voted": 0.4, "elected": 0.4},
        weights={"kill a process": 2, "power loss": 2, "sever connections": 1, "slow link": 1},
    ),
)
# One leader after the other is killed right after its election, and all voters are candidates at once.
_CROWD = QuorumScenario(
    voters=5,
    observers=0,
    dynamic=False,
    timeout_scale=0.05,
    append_every_s=0.5,
    nemesis=NemesisConfig(interval_s=0.5, longest_s=0.5, ambush={"elected": 0.9}, weights={"slow link": 1}),
)
_LOGS = QuorumScenario(
    voters=3,
    observers=0,
    dynamic=False,
    timeout_scale=0.1,
    append_every_s=0.05,
    fetch_max_bytes=1,
    nemesis=NemesisConfig(
        interval_s=0.3,
        longest_s=1.0,
        ambush={"elected": 0.05},
        weights={"power loss": 2, "isolate a machine": 2, "split the network": 2, "kill all": 1},
    ),
)
# Leaders are killed right after their election, each with records that only it has.
_FIGURE_8 = QuorumScenario(
    voters=3,
    observers=0,
    dynamic=False,
    timeout_scale=0.1,
    append_every_s=0.04,
    fetch_max_bytes=1,
    nemesis=NemesisConfig(
        interval_s=0.4, longest_s=0.5, ambush={"elected": 0.8}, weights={"isolate a machine": 1}
    ),
)
_SLOW_DISKS = QuorumScenario(
    voters=2,
    observers=0,
    dynamic=False,
    timeout_scale=0.1,
    append_every_s=0.15,
    nemesis=NemesisConfig(interval_s=0.2, longest_s=0.6, weights={"power loss": 2, "slow disk": 3}),
)
_PARTITIONS = QuorumScenario(
    voters=3,
    observers=0,
    dynamic=False,
    timeout_scale=0.1,
    append_every_s=0.5,
    nemesis=NemesisConfig(interval_s=1.0, longest_s=4.0, weights={"isolate a machine": 1}),
)
SCENARIOS: Mapping[str, QuorumScenario] = {
    "vote-not-synced": _ELECTIONS,
    "vote-sent-before-it-is-written": _ELECTIONS,
    "vote-forgotten-at-restart": _ELECTIONS,
    "two-votes-an-epoch": _ELECTIONS,
    "epoch-not-checked": _CROWD,
    "commit-by-older-epochs": _FIGURE_8,
    "leads-its-old-epoch-again": _SLOW_DISKS,
    "leader-never-gives-up": _PARTITIONS,
}


def quorum_bug_scenario(name: str) -> QuorumScenario:
    """The scenario in which to look for this bug."""
    return SCENARIOS.get(name, _LOGS)


@contextlib.contextmanager
def plant_quorum_bug(name: str | None) -> Iterator[None]:
    """Plant a bug for as long as the context lasts; None plants none."""
    with contextlib.ExitStack() as stack:
        for target, attribute, replacement in QUORUM_BUGS[name]() if name is not None else ():
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield
