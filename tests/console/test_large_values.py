"""Values of 100 MB: shown, searched and downloaded, while the memory of the node stays bounded."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.testing.cluster_plan import free_ports
from tests.console.api_client import ApiClient
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SIZE = 100_000_000
MB = 1_000_000
VALUE = b"0123456789" * (SIZE // 10)
PATH = "/api/topics/large/messages"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, ApiClient]]:
    (port,) = free_ports(1)
    settings = {"http.listener": f"http://127.0.0.1:{port}", "message.max.bytes": str(SIZE + MB)}
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with NodeProcess(tmp_path_factory.mktemp("large") / "data", *arguments) as node:
        with Admin(node.bootstrap) as admin:
            admin.topics.create("large", partitions=1)
        limits = {"max_request_size": SIZE + MB, "buffer_memory": 2 * SIZE}
        with Producer(node.bootstrap, **limits) as producer:
            producer.send("large", VALUE, key=b"\xff")
        yield node, ApiClient(f"http://127.0.0.1:{port}")


def memory_mb(node: NodeProcess, name: str) -> int:
    """`VmRSS` is what the process has now, `VmHWM` the most that it ever had."""
    found = re.search(rf"{name}:\s*(\d+) kB", Path(f"/proc/{node.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 // MB


def test_a_value_of_100_mb_is_cut_and_downloaded_whole(node: tuple[NodeProcess, ApiClient]) -> None:
    _, api = node
    answer = api.request("GET", PATH)
    assert len(answer.body) < 100_000
    (found,) = answer.document["items"]
    assert (found["value"]["size"], found["value"]["truncated"]) == (SIZE, True)
    whole = api.request("GET", f"{PATH}/download", partition=0, offset=0)
    assert whole.headers["content-length"] == str(SIZE)
    assert hashlib.sha256(whole.body).digest() == hashlib.sha256(VALUE).digest()
    message = json.loads(api.request("GET", f"{PATH}/download", partition=0, offset=0, part="message").body)
    assert message["key_base64"] == "/w=="
    assert message["value"].encode() == VALUE


@pytest.mark.exhaustive
def test_downloads_that_nothing_reads_do_not_fill_the_memory(node: tuple[NodeProcess, ApiClient]) -> None:
    process, api = node
    address = ("127.0.0.1", int(api.url.rpartition(":")[2]))
    before = memory_mb(process, "VmRSS")
    clients = []
    try:
        for _ in range(8):
            client = socket.create_connection(address)
            client.settimeout(120)
            client.sendall(
                f"GET {PATH}/download?partition=0&offset=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            clients.append(client)
        statuses = [client.recv(12)[9:] for client in clients]
        # Some are refused, and all that are served together hold no more than a few values.
        assert {*statuses} <= {b"200", b"429"}
        assert statuses.count(b"429") >= 4
        assert memory_mb(process, "VmRSS") - before < 6 * SIZE // MB
    finally:
        for client in clients:
            client.close()
    wait_until(
        lambda: api.request("HEAD", f"{PATH}/download", partition=0, offset=0).status == 200,
        "no place became free",
    )
    for _ in range(4):  # a place that a request without a body takes is given back
        assert api.request("HEAD", f"{PATH}/download", partition=0, offset=0).status == 200
    assert memory_mb(process, "VmHWM") < 7 * SIZE // MB
