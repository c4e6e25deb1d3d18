"""Clients that reset a connection before the node has looked at it are counted, and forgotten, as others."""

from __future__ import annotations

import logging
import socket
import struct

import pytest
from tests.support.wire import WireClient

from ottla import LocalNode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

pytestmark = pytest.mark.slow

RESETS = 400
PER_ADDRESS = 100


def test_resets_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), LocalNode(settings={"max.connections.per.ip": PER_ADDRESS}) as node:
        for number in range(RESETS):
            with socket.create_connection(("127.0.0.1", node.port)) as connection:
                if number % 4:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with WireClient(node.bootstrap_servers) as client:
            client.get(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert [record.getMessage() for record in caplog.records] == []
