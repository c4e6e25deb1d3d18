"""`python -m tests.house.request_path`: the files of Ottla that one Produce request runs through, one a line.

It profiles the thread of an embedded node while a client of its own sends the same request several times, and
prints the files of which a function ran every time, so that what the node does in the background is left out.
"""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path
from types import FrameType

import ottla
from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.schema import Request, Response
from ottla.records.builder import build_batch
from ottla.testing.local_node import LocalNode

_ROOT = str(Path(ottla.__file__).parent) + "/"
_WARM_UP, _SAMPLES = 3, 6


class _Profile:
    """Collects the files that run in threads other than the one that made it."""

    def __init__(self) -> None:
        self.files: set[str] | None = None
        self._own = threading.get_ident()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        files = self.files
        if files is not None and event == "call" and threading.get_ident() != self._own:
            name = frame.f_code.co_filename
            if name.startswith(_ROOT):
                files.add(name.removeprefix(_ROOT))


class _Client:
    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._correlation_id = 0

    def send(self, request: Request, version: int) -> Response:
        self._correlation_id += 1
        parts = request_parts(version, self._correlation_id, "request-path", request)
        self._socket.sendall(b"".join(bytes(part) for part in parts))
        (size,) = struct.unpack(">i", self._receive(4))
        _, response = read_response(API[request.API_KEY], version, self._receive(size))
        return response

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            chunk = self._socket.recv(size - len(received))
            assert chunk, "the node closed the connection"
            received += chunk
        return received

    def close(self) -> None:
        self._socket.close()


def files_of_a_produce_request() -> list[str]:
    profile = _Profile()
    threading.setprofile(profile)  # for threads that start from now on, the node's among them
    try:
        with LocalNode() as node:
            client = _Client(node.bootstrap_servers)
            try:
                return sorted(_sampled(client, profile))
            finally:
                client.close()
    finally:
        threading.setprofile(None)


def _sampled(client: _Client, profile: _Profile) -> set[str]:
    topic = CreatableTopic(name="path", num_partitions=1, replication_factor=1)
    created = client.send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    assert isinstance(created, CreateTopicsResponse)
    assert created.topics[0].error_code == 0, created
    common: set[str] | None = None
    for turn in range(_WARM_UP + _SAMPLES):
        data = PartitionProduceData(index=0, records=build_batch([(1, b"key", b"value")]))
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="path", partition_data=[data])]
        )
        files: set[str] = set()
        profile.files = files
        response = client.send(request, 11)
        profile.files = None
        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0, response
        if turn >= _WARM_UP:
            common = files if common is None else common & files
    assert common
    return common


if __name__ == "__main__":
    print("\n".join(files_of_a_produce_request()))
