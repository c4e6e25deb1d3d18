"""Messages outside of requests: frames, prefixes, subscriptions and the JSON form."""

from __future__ import annotations

import json

import pytest

from ottla.protocol import consumer_offsets_records, metadata_records, remote_log_records, share_state_records
from ottla.protocol import transaction_state_records as transaction_state
from ottla.protocol.consumer_offsets_records import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.protocol.control_records import EndTxnMarker, KRaftVersionRecord
from ottla.protocol.coordinator_records import CoordinatorRecords, decode_value, encode_key, encode_value
from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.framed_records import encode_framed
from ottla.protocol.json_form import from_json, json_name, to_json
from ottla.protocol.messages.produce import PartitionProduceData
from ottla.protocol.metadata_records import (
    NoOpRecord,
    PartitionRecord,
    TopicRecord,
    decode_metadata_record,
    encode_metadata_record,
)
from ottla.protocol.names import parse_uuid, uuid_text
from ottla.protocol.prefixed import decode_prefixed, encode_prefixed
from ottla.protocol.principal import DefaultPrincipalData
from ottla.protocol.quorum_state import QuorumStateData
from ottla.protocol.schema import Message
from tests.support.messages import MessageMaker, all_messages, messages_of, structs_of, versions_of
from tests.support.rows import for_each

TOPIC_ID = bytes(range(16))


def test_a_metadata_record_is_frame_type_version_and_body() -> None:
    record = TopicRecord(name="t", topic_id=TOPIC_ID)
    value = bytes.fromhex("01 02 00 02 74 000102030405060708090a0b0c0d0e0f 00")
    assert encode_metadata_record(record, 0) == value
    assert decode_metadata_record(value) == (record, 0)


def test_a_partition_record_keeps_its_version() -> None:
    record = PartitionRecord(
        partition_id=1, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, directories=[TOPIC_ID]
    )
    assert decode_metadata_record(memoryview(encode_metadata_record(record, 2))) == (record, 2)
    with pytest.raises(UnsupportedVersion, match="directories"):
        encode_metadata_record(record, 0)


@pytest.mark.parametrize("module", [metadata_records, remote_log_records])
def test_every_framed_record_is_found_by_its_type(module: object) -> None:
    for cls in messages_of(module):
        for version in versions_of(cls):
            record = MessageMaker((cls.__name__, version)).make(cls, version)
            types = module.RECORD_TYPES  # type: ignore[attr-defined]
            assert types.decode(encode_framed(record, version)) == (record, version)


@pytest.mark.parametrize(
    ("value", "error", "why"),
    [
        ("", MalformedMessage, "in the middle of its frame"),
        ("01 14", MalformedMessage, "in the middle of its frame"),
        ("02 14 00 00", MalformedMessage, "frame version 2"),
        ("01 63 00 00", UnsupportedVersion, "record type 99"),
        ("01 14 07 00", UnsupportedVersion, "NoOpRecord has versions 0 to 0, not 7"),
        ("01 14 00 00 00", MalformedMessage, "1 bytes left over"),
    ],
)
def test_a_bad_frame_is_named(value: str, error: type[Exception], why: str) -> None:
    assert decode_metadata_record(bytes.fromhex("01 14 00 00")) == (NoOpRecord(), 0)
    with pytest.raises(error, match=why):
        decode_metadata_record(bytes.fromhex(value))


def test_a_committed_offset_in_consumer_offsets() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=5)
    value = OffsetCommitValue(offset=42, leader_epoch=3, metadata="", commit_timestamp=1000)
    key_bytes = bytes.fromhex("0001 0001 67 0001 74 00000005")
    value_bytes = bytes.fromhex("0003 000000000000002a 00000003 0000 00000000000003e8")
    assert encode_key(key) == key_bytes
    assert encode_value(value, 3) == value_bytes
    assert consumer_offsets_records.RECORDS.decode(key_bytes, value_bytes) == (key, value)
    assert consumer_offsets_records.RECORDS.decode(key_bytes, None) == (key, None)
    assert decode_value(OffsetCommitValue, value_bytes) == value


def test_a_consumer_groups_member_without_a_classic_part_says_so() -> None:
    # Bytes made by Apache Kafka 4.3.1. An absent tag would be read as a classic member.
    value = ConsumerGroupMemberMetadataValue(
        instance_id="",
        rack_id="",
        subscribed_topic_regex="",
        server_assignor="",
        classic_member_metadata=None,
    )
    assert value.encode(0) == bytes.fromhex("01 01 01 01 01 01 ffffffff 01 01 00 01 00")
    assert ConsumerGroupMemberMetadataValue.decode(value.encode(0), 0) == value
    classic = value.replace(classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=5))
    assert classic.encode(0) == bytes.fromhex("01 01 01 01 01 01 ffffffff 01 01 00 07 01 00000005 01 00")
    assert ConsumerGroupMemberMetadataValue.decode(classic.encode(0), 0) == classic


@pytest.mark.parametrize("records", [consumer_offsets_records, transaction_state, share_state_records])
def test_every_coordinator_record_is_found_by_its_key(records: object) -> None:
    types: CoordinatorRecords = records.RECORDS  # type: ignore[attr-defined]
    messages = {cls.__name__: cls for cls in messages_of(records)}
    keys = [cls for name, cls in messages.items() if name.endswith("Key")]
    assert len(keys) * 2 == len(messages)
    for key_class in keys:
        value_class = messages[key_class.__name__.removesuffix("Key") + "Value"]
        assert value_class.API_KEY == key_class.API_KEY
        for version in versions_of(value_class):
            maker = MessageMaker((key_class.__name__, version))
            key, value = maker.make(key_class, 0), maker.make(value_class, version)
            assert types.decode(encode_key(key), encode_value(value, version)) == (key, value)


def test_record_types_and_versions_of_the_future_are_unsupported() -> None:
    types = consumer_offsets_records.RECORDS
    with pytest.raises(UnsupportedVersion, match="record type 99"):
        types.decode_key(bytes.fromhex("0063 0001 67"))
    with pytest.raises(UnsupportedVersion, match="GroupMetadataValue has versions 0 to 4, not 9"):
        types.decode(encode_key(GroupMetadataKey(group="g")), bytes.fromhex("0009 00"))
    with pytest.raises(MalformedMessage, match="too few"):
        types.decode_key(b"\0")
    with pytest.raises(MalformedMessage, match="left over"):
        types.decode_key(encode_key(ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")) + b"\0")


def test_a_transaction_marker_has_its_version_before_it() -> None:
    assert encode_prefixed(EndTxnMarker(coordinator_epoch=7), 0) == bytes.fromhex("0000 00000007")
    assert decode_prefixed(EndTxnMarker, bytes.fromhex("0000 00000007")) == (
        EndTxnMarker(coordinator_epoch=7),
        0,
    )
    with pytest.raises(MalformedMessage, match="2 bytes left over"):
        decode_prefixed(EndTxnMarker, bytes.fromhex("0000 00000007 0000"))


def test_a_principal_has_its_version_before_it() -> None:
    principal = DefaultPrincipalData(type="User", name="alice")
    data = bytes.fromhex("0000 05 55736572 06 616c696365 00 00")
    assert encode_prefixed(principal, 0) == data
    assert decode_prefixed(DefaultPrincipalData, data) == (principal, 0)


def test_a_subscription_is_read_in_every_version() -> None:
    subscription = ConsumerProtocolSubscription(
        topics=["a", "b"],
        user_data=b"sticky",
        owned_partitions=[ConsumerProtocolTopicPartition(topic="a", partitions=[0, 2])],
        generation_id=3,
        rack_id="eu-1",
    )
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_subscription(encode_subscription(subscription, 2)) == subscription.replace(rack_id=None)
    oldest = decode_subscription(encode_subscription(subscription, 0))
    assert oldest == ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"sticky")


def test_a_subscription_of_the_future_is_read_as_the_last_known_one() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a"], rack_id="eu-1")
    future = bytes.fromhex("0009") + subscription.encode(3) + b"what version 9 adds"
    assert decode_subscription(future) == subscription
    with pytest.raises(MalformedMessage, match="version -1 is below 0"):
        decode_subscription(bytes.fromhex("ffff 00000000"))


def test_an_assignment_is_read_back() -> None:
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[ConsumerProtocolTopicPartition(topic="a", partitions=[1])]
    )
    data = bytes.fromhex("0001 00000001 0001 61 00000001 00000001 ffffffff")
    assert encode_assignment(assignment, 1) == data
    assert decode_assignment(data) == assignment


def test_the_quorum_state_as_kafka_writes_it() -> None:
    state = QuorumStateData(leader_id=1, leader_epoch=5, voted_id=-1)
    assert to_json(state, 1) == {
        "leaderId": 1,
        "leaderEpoch": 5,
        "votedId": -1,
        "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA",
    }
    assert from_json(QuorumStateData, to_json(state, 1) | {"data_version": 1}, 1) == state


WITHOUT_RECORDS = [
    pytest.param(cls, id=cls.__name__)
    for cls in all_messages()
    if all(field.kind != "records" for struct in structs_of(cls) for field in struct.FIELDS)
]


@for_each("cls", WITHOUT_RECORDS)
def test_every_message_survives_its_json_form(cls: type[Message]) -> None:
    for version in versions_of(cls):
        message = MessageMaker((cls.__name__, version, "json")).make(cls, version)
        assert from_json(cls, json.loads(json.dumps(to_json(message, version))), version) == message


def test_records_appear_in_json_by_their_size() -> None:
    assert to_json(PartitionProduceData(index=1, records=b"12345"), 9) == {
        "index": 1,
        "recordsSizeInBytes": 5,
    }
    assert to_json(PartitionProduceData(index=1), 9) == {"index": 1, "records": None}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "an object is needed"),
        ({"leaderId": 1}, "leaderEpoch is missing"),
        ({"leaderId": "one"}, "leaderId cannot be 'one'"),
        ({"leaderId": None}, "leaderId must not be null"),
        ({"leaderId": 1, "leaderEpoch": 1, "votedId": 1, "votedDirectoryId": "x"}, "'x' is not an id"),
    ],
)
def test_a_bad_document_is_named(document: object, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        from_json(QuorumStateData, document, 1)  # type: ignore[arg-type]


def test_names_and_ids_in_json() -> None:
    assert json_name("enable_2pc") == "enable2Pc"
    assert to_json(KRaftVersionRecord(version=0, kraft_version=1), 0) == {"version": 0, "kRaftVersion": 1}
    assert parse_uuid(uuid_text(TOPIC_ID)) == TOPIC_ID
    with pytest.raises(ValueError, match="22 characters"):
        parse_uuid("short")
