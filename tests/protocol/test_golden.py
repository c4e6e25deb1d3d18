"""Bytes on the wire, written out: what every client sees first must never change."""

from __future__ import annotations

import pytest

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode, MalformedMessage, UnsupportedVersion
from ottla.protocol.headers import (
    RequestHeader,
    ResponseHeader,
    read_request_header,
    read_response,
    request_parts,
    response_parts,
)
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

RESPONSE = ApiVersionsResponse(
    api_keys=[ApiVersion(api_key=0, min_version=0, max_version=13), ApiVersion(api_key=18, max_version=4)],
    throttle_time_ms=5,
)
RESPONSE_BYTES = {
    0: "0000 00000002 0000 0000 000d 0012 0000 0004",
    1: "0000 00000002 0000 0000 000d 0012 0000 0004 00000005",
    2: "0000 00000002 0000 0000 000d 0012 0000 0004 00000005",
    3: "0000 03 0000 0000 000d 00 0012 0000 0004 00 00000005 00",
    4: "0000 03 0000 0000 000d 00 0012 0000 0004 00 00000005 00",
}


@pytest.mark.parametrize("version", RESPONSE_BYTES)
def test_api_versions_response(version: int) -> None:
    data = bytes.fromhex(RESPONSE_BYTES[version])
    assert RESPONSE.encode(version) == data
    decoded = ApiVersionsResponse.decode(data, version)
    assert decoded == (RESPONSE if version else RESPONSE.replace(throttle_time_ms=0))


def test_api_versions_response_with_features() -> None:
    response = ApiVersionsResponse(
        supported_features=[SupportedFeatureKey(name="fv", min_version=0, max_version=2)],
        finalized_features_epoch=7,
        finalized_features=[FinalizedFeatureKey(name="fv", max_version_level=2, min_version_level=1)],
    )
    data = bytes.fromhex(
        "0000 01 00000000 03"
        " 00 09 02 03 6676 0000 0002 00"
        " 01 08 0000000000000007"
        " 02 09 02 03 6676 0002 0001 00"
    )
    assert response.encode(3) == data
    assert ApiVersionsResponse.decode(data, 3) == response


def test_an_unsupported_version_is_answered_in_version_0_with_the_range_of_api_versions() -> None:
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
    )
    parts = response_parts(API[18], 0, 1, response)
    assert b"".join(parts).hex(" ", 2) == bytes.fromhex("00000010 00000001 0023 00000001 0012 0000 0004").hex(
        " ", 2
    )


def test_the_frame_of_an_api_versions_v3_response_has_a_header_without_tags() -> None:
    frame = b"".join(response_parts(API[18], 3, 42, RESPONSE))
    assert frame == bytes.fromhex("0000001a 0000002a" + RESPONSE_BYTES[3])
    assert read_response(API[18], 3, frame[4:]) == (42, RESPONSE)


def test_other_flexible_responses_have_tags_in_their_header() -> None:
    assert ResponseHeader(correlation_id=42).encode(0) == bytes.fromhex("0000002a")
    assert ResponseHeader(correlation_id=42).encode(1) == bytes.fromhex("0000002a 00")


def test_request_headers_keep_an_old_string_for_the_client_id() -> None:
    header = RequestHeader(request_api_key=18, request_api_version=3, correlation_id=9, client_id="me")
    assert header.encode(1) == bytes.fromhex("0012 0003 00000009 0002 6d65")
    assert header.encode(2) == bytes.fromhex("0012 0003 00000009 0002 6d65 00")
    assert header.replace(client_id=None).encode(2) == bytes.fromhex("0012 0003 00000009 ffff 00")


def test_a_request_frame_is_read_back() -> None:
    request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
    frame = b"".join(request_parts(3, 7, "me", request))
    assert frame == bytes.fromhex("00000016 0012 0003 00000007 0002 6d65 00 06 6f74746c61 02 31 00")
    api, version, correlation_id, client_id, position = read_request_header(frame[4:])
    assert (api.name, version, correlation_id, client_id) == ("ApiVersions", 3, 7, "me")
    assert ApiVersionsRequest.decode(frame[4 + position :], 3) == request


def test_the_header_of_an_api_versions_request_of_the_future_is_read() -> None:
    frame = bytes.fromhex("0012 0063 00000007 0002 6d65 00") + b"whatever comes in version 99"
    header = read_request_header(frame)
    assert (header.api.key, header.version, header.correlation_id, header.client_id) == (18, 99, 7, "me")


@pytest.mark.parametrize(
    ("start", "what"),
    [
        ("0000 0002", "Produce version 2"),
        ("0003 000e", "Metadata version 14"),
        ("0004 0001", "LeaderAndIsr version 1"),
        ("4745 5420", "unknown API 18245"),
        ("0012 ffff", "ApiVersions version -1"),
    ],
)
def test_a_request_that_is_not_served_is_named(start: str, what: str) -> None:
    with pytest.raises(UnsupportedVersion, match=what):
        read_request_header(bytes.fromhex(start) + bytes(20))


@pytest.mark.parametrize("frame", ["", "0012", "0012 0003 0000", "0012 0000 00000001 0010 6d65"])
def test_a_header_that_ends_early_is_malformed(frame: str) -> None:
    with pytest.raises(MalformedMessage):
        read_request_header(bytes.fromhex(frame))


def test_produce_request_v3_and_v9() -> None:
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=b"RECORDS")])
        ],
    )
    assert request.encode(3) == bytes.fromhex(
        "ffff ffff 000003e8 00000001 0001 74 00000001 00000001 00000007 5245434f524453"
    )
    assert request.encode(9) == bytes.fromhex(
        "00 ffff 000003e8 02 02 74 02 00000001 08 5245434f524453 00 00 00"
    )
