"""Control records: the markers that end transactions, and the records of the quorum itself.

The key of a control record is its version and its type as int16. The value of EndTxnMarker has its version
before it (`ottla.protocol.prefixed`); the values of the quorum's records have a version field of their own
instead.
"""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, int64, nested, string, uint16, uuid


class EndTxnMarker(Message, versions="0"):
    """The end of a transaction in a partition; the type says whether it was committed."""

    coordinator_epoch: int = int32()


class LeaderChangeMessageVoter(Struct):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid(versions="1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    """The first record of a new leader of the quorum. v1: the directory ids of the voters."""

    version: int = int16()
    leader_id: int = int32()
    voters: list[LeaderChangeMessageVoter] = array(LeaderChangeMessageVoter)
    granting_voters: list[LeaderChangeMessageVoter] = array(LeaderChangeMessageVoter)


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    """The first record of a snapshot."""

    version: int = int16()
    last_contained_log_timestamp: int = int64()


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    """The last record of a snapshot."""

    version: int = int16()


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    """The version of the quorum protocol from here on."""

    version: int = int16()
    kraft_version: int = int16()


class VotersRecordEndpoint(Struct):
    name: str = string(map_key=True)
    host: str = string()
    port: int = uint16()


class KRaftVersionFeature(Struct):
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class VotersRecordVoter(Struct):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    endpoints: list[VotersRecordEndpoint] = array(VotersRecordEndpoint)
    kraft_version_feature: KRaftVersionFeature = nested(KRaftVersionFeature)


class VotersRecord(Message, versions="0", flexible="0+"):
    """The voters of the quorum from here on."""

    version: int = int16()
    voters: list[VotersRecordVoter] = array(VotersRecordVoter)
