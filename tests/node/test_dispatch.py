"""From frames to handlers: the node serves what it announces and nothing else; a request that cannot be
answered closes its connection.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator

import pytest
from tests.support.wire import WireClient, produce_request

from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API_BY_NAME, ListenerType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.testing.local_node import LocalNode


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as node:
        yield node


@pytest.fixture
def client(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as client:
        yield client


def test_what_is_served_is_announced(client: WireClient) -> None:
    response = client.get(ApiVersionsRequest(), 0, ApiVersionsResponse)
    announced = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert announced == {
        key: route.announced_versions(ListenerType.BROKER, unstable=False)
        for key, route in ROUTES.items()
        # No push of a client would be seen: this node answers no HTTP and knows no collector. Nor does it
        # take this client for one of its own.
        if ListenerType.BROKER in route.listeners and not route.is_optional and route.api.is_of_kafka
    }
    assert announced[API_BY_NAME["Produce"].key][0] == 0


@pytest.mark.parametrize("version", [6, 7, 127, 32767])
def test_a_version_of_api_versions_from_the_future_is_answered_in_version_0(
    client: WireClient, version: int
) -> None:
    header = struct.pack(">hhih", 18, version, 77, -1)
    client.send_frame(header + b"\0whatever comes")
    frame = client.receive_frame()
    assert frame is not None
    assert struct.unpack(">ihihhh", frame) == (77, ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 5)


def test_an_unserved_version_closes_the_connection_and_names_the_client(
    client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    software = ApiVersionsRequest(client_software_name="acme-client", client_software_version="1.2")
    client.get(software, 3, ApiVersionsResponse)
    client.send_frame(struct.pack(">hhih", 3, 99, 1, 4) + b"mine" + b"\0")
    assert client.receive_frame() is None
    assert "it asked for Metadata version 99; versions 0 to 13 are served" in caplog.text
    assert "'mine'" in caplog.text
    assert "acme-client 1.2" in caplog.text


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "too short for a header"),
        (struct.pack(">hhih", 999, 0, 1, -1), "unknown API 999"),
        (struct.pack(">hhih", 7, 0, 1, -1), "ControlledShutdown"),
        (struct.pack(">hhih", 3, 9, 1, 50), "no proper header"),
        (struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff", "cannot be read"),
        (struct.pack(">hhih", 56, 3, 1, -1), "AlterPartition"),
    ],
)
def test_a_request_that_cannot_be_answered_closes_only_its_own_connection(
    node: LocalNode, client: WireClient, caplog: pytest.LogCaptureFixture, frame: bytes, reason: str
) -> None:
    caplog.set_level(logging.WARNING)
    with WireClient(node.bootstrap_servers) as other:
        other.get(ApiVersionsRequest(), 0, ApiVersionsResponse)
        client.send_frame(frame)
        assert client.receive_frame() is None
        other.get(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert reason in caplog.text
    assert len(caplog.records) == 1


def test_a_produce_without_acknowledgement_that_fails_closes_the_connection(client: WireClient) -> None:
    client.send(produce_request("missing", b"", acks=0), 9)
    assert client.receive_frame() is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_listener_for_all_interfaces_is_advertised_by_the_address_that_the_client_used(host: str) -> None:
    with LocalNode({"listeners": "PLAINTEXT://0.0.0.0:0"}) as node:
        with WireClient(f"{host}:{node.port}") as client:
            response = client.get(MetadataRequest(topics=[]), 12, MetadataResponse)
        (broker,) = response.brokers
        assert (broker.host, broker.port) == (host, node.port)


def test_an_advertised_address_is_returned_as_it_is() -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://broker.example:1234",
    }
    with LocalNode(settings) as node, WireClient(f"127.0.0.1:{node.port}") as client:
        response = client.get(MetadataRequest(topics=[]), 12, MetadataResponse)
    (broker,) = response.brokers
    assert (broker.host, broker.port) == ("broker.example", 1234)
