"""What a declaration promises: construction, versions, nulls, tags, buffers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.messages.consumer_group_describe import Assignment, Member
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.schema import (
    Field,
    Message,
    Struct,
    array,
    binary,
    int16,
    int32,
    int64,
    nested,
    parse_versions,
    string,
)
from tests.support.messages import MessageMaker, all_messages, structs_of, versions_of
from tests.support.rows import for_each

EVERY_MESSAGE = [pytest.param(cls, id=cls.__name__) for cls in all_messages()]


@for_each("cls", EVERY_MESSAGE)
def test_every_version_reads_what_it_wrote_with_tags_from_the_future(cls: type[Message]) -> None:
    for version in versions_of(cls):
        for seed in range(6):
            message = MessageMaker((cls.__name__, version, seed), unknown_tags=True).make(cls, version)
            data = message.encode(version)
            assert cls.decode(data, version) == message
            assert cls.decode(memoryview(bytearray(data)), version) == message
            assert b"".join(message.encode_parts(version)) == data


_PLAIN = {
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
}


def _annotation(field: Field) -> str:
    kind = field.item if field.kind == "array" else field.kind
    assert kind is not None
    plain = field.struct.__name__ if field.struct is not None else _PLAIN.get(kind, "int")
    if field.kind == "bytes" and field.zero_copy:
        plain = "Buffer"
    shown = f"list[{plain}]" if field.kind == "array" else plain
    return f"{shown} | None" if field.nullable[0] <= field.nullable[1] else shown


@for_each("cls", EVERY_MESSAGE)
def test_annotations_say_what_is_declared(cls: type[Message]) -> None:
    for struct in structs_of(cls):
        declared = {field.name: _annotation(field) for field in struct.FIELDS}
        assert declared == {name: struct.__annotations__.get(name) for name in declared}


def test_ranges_are_written_as_kafka_writes_them() -> None:
    assert [parse_versions(text) for text in ("3", "3-5", "3+", "none")] == [
        (3, 3),
        (3, 5),
        (3, 32767),
        (0, -1),
    ]


def test_what_is_left_out_has_kafkas_default() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.session_epoch) == (-1, 2**31 - 1, -1)
    assert (request.cluster_id, request.rack_id, request.topics) == (None, "", [])
    assert request.replica_state == ReplicaState(replica_id=-1, replica_epoch=-1)


def test_lists_are_never_shared() -> None:
    FetchRequest().topics.append(FetchTopic())
    assert FetchRequest().topics == []
    assert FetchRequest.decode(FetchRequest().encode(4), 4).forgotten_topics_data == []
    Member().assignment.topic_partitions.append(Any)  # type: ignore[arg-type]
    assert Member().assignment == Assignment()


def test_the_shared_default_of_a_struct_cannot_be_changed() -> None:
    partition = PartitionData()
    with pytest.raises(AttributeError, match="assign a new LeaderIdAndEpoch"):
        partition.current_leader.leader_id = 3
    partition.current_leader = LeaderIdAndEpoch(leader_id=3)
    assert PartitionData().current_leader.leader_id == -1


def test_messages_can_be_copied_and_pickled() -> None:
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData()])])
    for clone in (copy.deepcopy(response), pickle.loads(pickle.dumps(response)), response.replace()):
        assert clone == response
        assert type(clone) is FetchResponse
    assert response.replace(session_id=5).session_id == 5


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="partition_id"):
        PartitionData(partition_id=1)  # type: ignore[call-arg]


def test_messages_are_equal_by_value_and_not_hashable() -> None:
    assert FetchTopic(topic="a") == FetchTopic(topic="a") != FetchTopic(topic="b")
    assert FetchTopic() != ReplicaState()
    with pytest.raises(TypeError, match="unhashable"):
        hash(FetchTopic())


def test_a_version_that_does_not_exist_is_refused_both_ways() -> None:
    with pytest.raises(UnsupportedVersion, match="FetchRequest has versions 4 to 18, not 3"):
        FetchRequest().encode(3)
    with pytest.raises(UnsupportedVersion, match="not 19"):
        FetchRequest.decode(b"", 19)


def test_a_value_that_a_version_cannot_express_is_refused_not_dropped() -> None:
    request = FetchRequest(replica_id=7)
    assert FetchRequest.decode(request.encode(14), 14).replica_id == 7
    with pytest.raises(UnsupportedVersion, match="FetchRequest v15 has no replica_id, which is 7"):
        request.encode(15)
    with pytest.raises(UnsupportedVersion, match="replica_state"):
        FetchRequest(replica_state=ReplicaState(replica_id=7)).encode(14)


def test_an_ignorable_value_is_dropped_where_the_version_lacks_it() -> None:
    request = FetchRequest(rack_id="eu-1", session_id=9)
    assert FetchRequest.decode(request.encode(6), 6) == FetchRequest()
    assert FetchRequest.decode(request.encode(10), 10) == FetchRequest(session_id=9)


def test_null_is_refused_where_the_version_has_none() -> None:
    assert MetadataRequest.decode(MetadataRequest(topics=None).encode(1), 1).topics is None
    with pytest.raises(UnsupportedVersion, match="topics must not be null"):
        MetadataRequest(topics=None).encode(0)
    named = MetadataRequest(topics=[MetadataRequestTopic(name=None)])
    with pytest.raises(UnsupportedVersion, match="name must not be null"):
        named.encode(9)
    with pytest.raises(MalformedMessage, match="name is null"):
        MetadataRequest.decode(named.encode(10)[:1] + bytes.fromhex("00 00") + bytes(3), 9)


def test_records_are_a_view_of_the_message_they_came_in() -> None:
    records = bytes(range(256)) * 40
    response = FetchResponse(
        responses=[FetchableTopicResponse(partitions=[PartitionData(records=records)] * 2)],
    )
    parts = response.encode_parts(17)
    assert [part for part in parts if part is records] == [records, records]
    frame = bytearray(b"".join(parts))
    decoded = FetchResponse.decode(frame, 17).responses[0].partitions[1].records
    assert isinstance(decoded, memoryview)
    assert decoded == records
    frame[frame.rindex(records)] = 77
    assert decoded[0] == 77


def test_small_parts_are_joined() -> None:
    response = FetchResponse(
        responses=[FetchableTopicResponse(partitions=[PartitionData(records=b"x" * 99)] * 50)]
    )
    assert len(response.encode_parts(17)) == 1


def test_bytes_left_over_are_malformed() -> None:
    with pytest.raises(MalformedMessage, match="FetchRequest v17: 2 bytes left over"):
        FetchRequest.decode(FetchRequest().encode(17) + b"\0\0", 17)


def test_every_prefix_of_a_message_is_malformed() -> None:
    message = MessageMaker("prefix").make(FetchResponse, 17)
    data = message.encode(17)
    for size in range(len(data)):
        with pytest.raises(MalformedMessage):
            FetchResponse.decode(data[:size], 17)


def test_text_that_is_not_utf_8_is_read_with_replacements_as_kafka_does() -> None:
    data = MetadataRequest(topics=[MetadataRequestTopic(name="abc")]).encode(0).replace(b"b", b"\xff")
    topics = MetadataRequest.decode(data, 0).topics
    assert topics is not None
    assert topics[0].name == "a�c"


class Inner(Struct):
    number: int = int64()
    texts: list[str] = array("string")


class Sample(Message, versions="0-1", flexible="1+"):
    """Small enough to write its bytes by hand."""

    small: int = int16()
    text: str | None = string(nullable=True, default=None)
    inner: Inner | None = nested(Inner, nullable=True, default=None)
    blob: bytes = binary()
    tagged: int = int32(versions="1+", tag=3, default=5)


def test_old_and_flexible_forms_of_every_kind() -> None:
    sample = Sample(small=-2, text="ab", inner=Inner(number=1, texts=["x", ""]), blob=b"\x09")
    old = "fffe 0002 6162 01 0000000000000001 00000002 0001 78 0000 00000001 09"
    new = "fffe 03 6162 01 0000000000000001 03 02 78 01 00 02 09 00"
    assert sample.encode(0) == bytes.fromhex(old)
    assert sample.encode(1) == bytes.fromhex(new)
    assert Sample.decode(bytes.fromhex(old), 0) == Sample.decode(bytes.fromhex(new), 1) == sample


def test_nulls_of_every_kind() -> None:
    assert Sample().encode(0) == bytes.fromhex("0000 ffff ff 00000000")
    assert Sample().encode(1) == bytes.fromhex("0000 00 ff 01 00")
    assert Sample.decode(Sample().encode(1), 1) == Sample()


def test_a_tagged_field_is_there_only_if_it_is_not_the_default() -> None:
    assert Sample(tagged=6).encode(1) == bytes.fromhex("0000 00 ff 01 01 03 04 00000006")
    assert Sample.decode(Sample(tagged=6).encode(1), 1).tagged == 6


def test_unknown_tags_are_kept_and_sent_on_in_order() -> None:
    data = bytes.fromhex("0000 00 ff 01 03 01 01 aa 03 04 00000006 8827 00")
    decoded = Sample.decode(data, 1)
    assert decoded.unknown_tags == {1: b"\xaa", 5000: b""}
    assert decoded.encode(1) == data


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("0000 00 ff 01 01 03 05 00000006 00", "not as long as it claims"),
        ("0000 00 ff 01 01 03 7f 00000006", "claims 127 bytes"),
        ("0000 00 ff 00 00", "blob is null"),
        ("0000 00 ff ffffffff0f 00", "beyond 32 bits"),
        ("0000 00 ff ffffffffff01 00", "longer than 5 bytes"),
        ("0000 81800400", "string of 65536 bytes"),
        ("0000 00 01 0000000000000001 ffffffff07", "claims 2147483646 elements"),
        ("0000 00 01 00000000", "ends in the middle"),
    ],
)
def test_malformed_bodies_say_what_is_wrong(body: str, why: str) -> None:
    data = bytes.fromhex(body) + (bytes(70000) if "string" in why else b"")
    with pytest.raises(MalformedMessage, match=why):
        Sample.decode(data, 1)


def test_values_that_do_not_fit_are_refused_when_encoding() -> None:
    with pytest.raises(ValueError, match="Sample v0: a value does not fit its field"):
        Sample(small=40000).encode(0)
    with pytest.raises(ValueError, match="text is a string of 32768 bytes"):
        Sample(text="x" * 32768).encode(1)


def test_to_dict_shows_nested_structs() -> None:
    assert Sample(inner=Inner(texts=["a"])).to_dict() == {
        "small": 0,
        "text": None,
        "inner": {"number": 0, "texts": ["a"]},
        "blob": b"",
        "tagged": 5,
    }
