"""`ottla wait`: exit statuses for scripts, by Kafka's protocol and over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import pytest

from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine, Ended
from tests.support.waiting import DEADLINE_S, came_true


@pytest.mark.witness
def test_a_cluster_is_ready(ottla: CommandLine, topic: str) -> None:
    ended = ottla.ok("wait", "--timeout", "60", "--topic", topic, "--brokers", "1")
    assert ended.out.startswith("ready after ")
    document = ottla.ok("wait", "--json").json
    assert document["ready"] == [ottla.bootstrap_servers]
    assert document["waited_ms"] >= 0
    assert ottla.ok("wait", "--quiet").out == ""


@pytest.mark.slow
def test_what_is_missing_is_waited_for(ottla: CommandLine) -> None:
    name = uuid4().hex[:16]
    tries: list[Ended] = []

    def is_missing() -> bool:
        tries.append(ottla("wait", "--topic", name, "--timeout", "2"))
        return tries[-1].status == 1  # 3 if the cluster does not answer in that time

    assert came_true(is_missing, DEADLINE_S), tries
    assert f"is not ready: topic {name} does not exist" in tries[-1].err
    ended = ottla("wait", "--brokers", "7", "--timeout", "0")
    assert ended.status == 1
    assert "1 of 7 brokers are there" in ended.err
    # It comes while the command waits.
    waiting = CommandLine(ottla.bootstrap_servers)
    creation = threading.Timer(0.3, lambda: waiting_to_create(ottla.bootstrap_servers, name))
    creation.start()
    try:
        waiting.ok("wait", "--topic", name, "--timeout", "60")
    finally:
        creation.join()


def waiting_to_create(bootstrap: str, name: str) -> None:
    from ottla import blocking

    with blocking.Admin(bootstrap) as admin:
        admin.topics.create(name, partitions=1, replication_factor=1)


def test_what_does_not_answer_has_a_status_of_its_own(offline: CommandLine) -> None:
    ended = offline("wait", "--timeout", "0.2")
    assert (ended.status, "127.0.0.1:1 is not ready" in ended.err) == (3, True)
    ended = offline("wait", "--http", "http://127.0.0.1:1", "--timeout", "0", "--quiet")
    assert (ended.status, ended.out) == (3, "")


def test_what_cannot_be_asked_is_wrong_usage(offline: CommandLine) -> None:
    for url in ("ftp://a:1", "http://", "http://a:99999", "http://127.0.0.1:1/path"):
        ended = offline("wait", "--http", url)
        assert (ended.status, "--http" in ended.err) == (2, True), url
    assert offline("wait", "--skip", "luck").status == 2


@pytest.fixture(scope="module")
def with_http() -> Iterator[LocalNode]:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        yield node


def test_a_node_is_ready_over_http(with_http: LocalNode) -> None:
    assert with_http.http_url is not None
    both = CommandLine(with_http.bootstrap_servers)
    ended = both.ok("wait", "--http", with_http.http_url, "--skip", "in_sync", "--json")
    assert ended.json["ready"] == [with_http.http_url, with_http.bootstrap_servers]
    both.ok("wait", "--http", with_http.http_url.removeprefix("http://"))


@pytest.mark.slow
def test_a_node_that_gets_ready_is_waited_for() -> None:
    """The node says what it waits for, and the command passes that on, once."""
    said: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.append(self.path)
            is_ready = len(said) > 4
            problems = [] if is_ready else ["started: loading its logs"]
            body = json.dumps({"status": "ready" if is_ready else "not ready", "problems": problems}).encode()
            self.send_response(200 if is_ready else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with LocalNode() as cluster:
                ended = CommandLine(cluster.bootstrap_servers).ok("wait", "--http", url, "--skip", "in_sync")
        finally:
            server.shutdown()
            thread.join()
    assert said == ["/health/ready?skip=in_sync"] * 5
    assert ended.err == f"{url}: started: loading its logs\n"


def test_a_page_that_is_none_of_a_node_is_named(with_http: LocalNode, offline: CommandLine) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            ended = offline("wait", "--http", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert (ended.status, "is no HTTP listener of a node" in ended.err) == (1, True)
