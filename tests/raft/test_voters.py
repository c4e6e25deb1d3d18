"""Voter sets: parsed, changed, and their history in the log."""

from __future__ import annotations

import pytest

from ottla.protocol.control_records import KRaftVersionRecord
from ottla.raft.voters import BEFORE_LOG, ReplicaKey, Voter, VoterSet, VoterSetHistory
from ottla.runtime.address import Address
from tests.raft.raft_harness import dynamic_voters, key, static_voters


class TestVoters:
    def test_parsing_the_configuration(self) -> None:
        voters = VoterSet.parse("1@localhost:9093, 2@[::1]:9094", "CONTROLLER")
        assert voters.ids == (1, 2)
        assert voters.majority == 2
        assert voters.voters[2].endpoints == {"CONTROLLER": Address("::1", 9094)}

    @pytest.mark.parametrize(
        "text", ["", "1", "1@host", "@host:1", "x@host:1", "1@host:70000", "1@a:1,1@b:2"]
    )
    def test_what_is_wrong_is_named(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"controller\.quorum\.voters"):
            VoterSet.parse(text, "CONTROLLER")

    def test_a_set_is_never_empty(self) -> None:
        with pytest.raises(ValueError, match="at least one voter"):
            VoterSet({})

    def test_one_more_and_one_less(self) -> None:
        one, two = Voter(ReplicaKey(1, b"a" * 16)), Voter(ReplicaKey(2, b"b" * 16))
        both = VoterSet.of(one).add_voter(two)
        assert both.ids == (1, 2)
        assert both.remove_voter(one.key) == VoterSet.of(two)
        with pytest.raises(ValueError, match="already"):
            both.add_voter(Voter(ReplicaKey(2, b"c" * 16)))
        with pytest.raises(ValueError, match="not a voter"):
            both.remove_voter(ReplicaKey(1, b"c" * 16))
        with pytest.raises(ValueError, match="at least one"):
            VoterSet.of(one).remove_voter(one.key)


class TestVoterSetHistory:
    def history(self) -> VoterSetHistory:
        """Voters 1 from the beginning, 1 and 2 from offset 10 on, 2 alone from 20 on."""
        history = VoterSetHistory()
        history.load_snapshot(0, 1, dynamic_voters(1))
        history.replay_records(10, [dynamic_voters(1, 2).to_record()])
        history.replay_records(20, [dynamic_voters(2).to_record()])
        return history

    def test_the_newest_set_is_in_force(self) -> None:
        history = self.history()
        assert history.voters == dynamic_voters(2)
        assert history.is_only_voter(key(2))

    def test_and_the_one_before_when_it_is_truncated(self) -> None:
        history = self.history()
        assert history.truncate_to(20)
        assert history.voters == dynamic_voters(1, 2)
        assert not history.truncate_to(11)
        assert history.truncate_to(0)
        assert history.last_entry is not None
        assert history.last_entry.offset == BEFORE_LOG

    def test_a_snapshot_contains_the_voters_at_its_end(self) -> None:
        history = self.history()
        assert history.at(10) == (1, dynamic_voters(1))
        assert history.at(11) == (1, dynamic_voters(1, 2))
        assert history.at(99) == (1, dynamic_voters(2))

    def test_entries_that_no_snapshot_needs_are_removed(self) -> None:
        history = self.history()
        history.truncate_before(15)
        assert history.at(15) == (1, dynamic_voters(1, 2))
        assert history.at(99) == (1, dynamic_voters(2))

    def test_a_removed_voter_may_stand_until_its_removal_is_committed(self) -> None:
        history = self.history()
        assert history.may_vote(key(1), 20)
        assert not history.may_vote(key(1), 21)
        assert history.may_vote(key(2), 21)
        assert not history.may_vote(key(3), 0)

    def test_configured_voters_until_the_log_says_otherwise(self) -> None:
        history = VoterSetHistory(static_voters(1, 2, 3))
        assert history.voters == static_voters(1, 2, 3)
        history.replay_records(0, [dynamic_voters(1).to_record()])
        assert history.voters == static_voters(1, 2, 3)
        history.replay_records(1, [KRaftVersionRecord(kraft_version=1)])
        assert history.voters == dynamic_voters(1)
