"""Requests that a broker forwards to the controller, with the client's principal and address as in Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.wire import WireClient

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import RequestHeader, read_response, request_header_version
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.schema import Request
from ottla.runtime.turns import Turns
from ottla.security import principal
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode

# As Kafka's DefaultKafkaPrincipalBuilder writes User:ANONYMOUS: version 0, two compact strings, no token.
ANONYMOUS = b"\0\0" + b"\x05User" + b"\x0aANONYMOUS" + b"\0" + b"\0"
LOOPBACK = bytes([127, 0, 0, 1])


@pytest.fixture(scope="module")
def controller() -> Iterator[WireClient]:
    """A connection to the controller's listener of a node."""
    (port,) = free_ports(1)
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
    }
    with LocalNode(settings), WireClient(f"127.0.0.1:{port}") as client:
        yield client


def frame(request: Request, version: int) -> bytes:
    api = API[request.API_KEY]
    header = RequestHeader(
        request_api_key=api.key, request_api_version=version, correlation_id=7, client_id="a-client"
    )
    return header.encode(request_header_version(api, version)) + request.encode(version)


def creation(name: str) -> bytes:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return frame(CreateTopicsRequest(topics=[topic]), 7)


def put(controller: WireClient, data: bytes, principal: bytes | None, host: bytes) -> EnvelopeResponse:
    request = EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=host)
    return controller.get(request, 0, EnvelopeResponse)


def test_the_principal_is_encoded_as_kafka_does() -> None:
    assert principal.ANONYMOUS.encode() == ANONYMOUS
    token = principal.KafkaPrincipal("User", "alice", token_authenticated=True)
    assert token.encode() == b"\0\0\x05User\x06alice\1\0"
    read = principal.KafkaPrincipal.decode(token.encode())
    assert (read, read.token_authenticated) == (token, True)


@pytest.mark.parametrize("host", [LOOPBACK, bytes(15) + b"\1"])
@pytest.mark.parametrize("principal", [ANONYMOUS, b"\0\0\x05User\x06alice\1\0"])
def test_a_forwarded_request_is_answered(controller: WireClient, principal: bytes, host: bytes) -> None:
    name = f"topic-{len(host)}-{len(principal)}"
    answer = put(controller, creation(name), principal, host)
    assert answer.error_code == 0
    assert answer.response_data is not None
    number, response = read_response(API[CreateTopicsRequest.API_KEY], 7, answer.response_data)
    assert number == 7
    assert isinstance(response, CreateTopicsResponse)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [(name, 0)]


def test_a_long_request_that_was_forwarded_is_answered_in_turns(
    controller: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []
    pause = Turns.pause

    async def counted(self: Turns) -> None:
        pauses.append(1)
        await pause(self)

    monkeypatch.setattr(Turns, "pause", counted)
    monkeypatch.setattr(Turns, "is_due", lambda self: True)
    ops = [OpData(key="producer_byte_rate", value=1.0)]
    entries = [
        AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type="user", entity_name=f"user-{number}")], ops=ops
        )
        for number in range(400)
    ]
    data = frame(AlterClientQuotasRequest(entries=entries, validate_only=True), 1)
    answer = put(controller, data, ANONYMOUS, LOOPBACK)
    assert answer.error_code == 0
    assert answer.response_data is not None
    _, response = read_response(API[AlterClientQuotasRequest.API_KEY], 1, answer.response_data)
    assert isinstance(response, AlterClientQuotasResponse)
    assert [entry.entity[0].entity_name for entry in response.entries] == [
        f"user-{number}" for number in range(400)
    ]
    assert not any(entry.error_code for entry in response.entries)
    assert len(pauses) >= 800


@pytest.mark.parametrize(
    ("data", "principal", "host", "error"),
    [
        (creation("a"), None, LOOPBACK, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (creation("a"), b"", LOOPBACK, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (creation("a"), ANONYMOUS[:-3], LOOPBACK, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (creation("a"), b"\0\x09" + ANONYMOUS[2:], LOOPBACK, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (creation("a"), ANONYMOUS, b"", ErrorCode.INVALID_REQUEST),
        (creation("a"), ANONYMOUS, bytes(5), ErrorCode.INVALID_REQUEST),
        (b"", ANONYMOUS, LOOPBACK, ErrorCode.INVALID_REQUEST),
        (creation("a")[:9], ANONYMOUS, LOOPBACK, ErrorCode.INVALID_REQUEST),
        (frame(ProduceRequest(), 9), ANONYMOUS, LOOPBACK, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_envelope_that_cannot_be_read_is_refused_as_a_whole(
    controller: WireClient, data: bytes, principal: bytes | None, host: bytes, error: ErrorCode
) -> None:
    answer = put(controller, data, principal, host)
    assert answer.error_code == error
    assert answer.response_data is None
