"""`ottla top`: what a cluster does, from metrics and by Kafka's protocol."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch

import pytest

from ottla.cli.main import main
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine, Ended

DEADLINE_S = 60.0
# What has a terminal show another screen, and the old one again.
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


@contextmanager
def pages(*texts: str) -> Iterator[str]:
    """A node whose metrics are these, one after the other; an empty one is an error."""
    given = list(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = given.pop(0) if len(given) > 1 else given[0]
            self.send_response(200 if text else 401)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def node_text(records: int, *, under_replicated: int = 0, task_down: int = 0) -> str:
    return (
        f'kafka_server_brokertopicmetrics_messagesin_total{{topic="orders"}} {records}\n'
        f'kafka_server_brokertopicmetrics_messagesin_total{{topic="idle"}} 7\n'
        f'kafka_server_brokertopicmetrics_bytesin_total{{topic="orders"}} {records * 100}\n'
        'kafka_network_requestmetrics_requests_total{request="Produce",version="13"} 10\n'
        'kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99"} 1.25\n'
        'kafka_network_requestmetrics_totaltimems{request="FetchConsumer",quantile="0.99"} NaN\n'
        f"kafka_server_replicamanager_underreplicatedpartitions {under_replicated}\n"
        "kafka_server_replicamanager_partitioncount 12\n"
        "process_resident_memory_bytes 52428800\n"
        'kafka_consumergroup_lag_sum{consumergroup="billing",topic="orders"} 30\n'
        'kafka_consumergroup_lag_sum{consumergroup="billing",topic="idle"} 3\n'
        f'ottla_background_task_down{{task="log cleaner"}} {task_down}\n'
    )


def top(*urls: str, options: tuple[str, ...] = ()) -> Ended:
    """Look at the metrics of nodes, and at no cluster."""
    with patch.dict("os.environ"):
        os.environ.pop("OTTLA_BOOTSTRAP_SERVERS", None)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            nodes = [argument for url in urls for argument in ("--http", url)]
            status = main(["top", *nodes, "--once", "--interval", "0.2", *options])
        return Ended(status, out.getvalue().encode(), err.getvalue())


@pytest.mark.slow
def test_metrics_of_nodes() -> None:
    with pages(node_text(100), node_text(1100)) as one, pages(node_text(0)) as two:
        document = top(one, two, options=("--json",)).json
    assert document["problems"] == []
    nodes = document["nodes"]
    assert nodes[one]["records_in_per_s"] > 0
    assert nodes[one]["bytes_in_per_s"] == pytest.approx(nodes[one]["records_in_per_s"] * 100)
    assert nodes[two]["records_in_per_s"] == 0
    assert (nodes[one]["produce_p99_ms"], nodes[one]["fetch_p99_ms"]) == (1.25, None)
    assert nodes[one]["partitions"] == 12
    assert document["topics"]["orders"]["records_in_per_s"] == nodes[one]["records_in_per_s"]
    assert document["topics"]["idle"]["records_in_per_s"] == 0
    assert document["group_lags"] == {"billing": 66}


@pytest.mark.slow
def test_what_is_wrong_comes_first() -> None:
    with pages(node_text(5, under_replicated=2, task_down=1)) as one, pages("") as two:
        ended = top(one, two, "http://127.0.0.1:1")
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert lines[:3] == [
        f"! {one}: 2 under replicated",
        f"! {one}: background task down: log cleaner",
        f"! {two}: its metrics are answered with status 401: it needs a login (--command-config)",
    ]
    assert lines[3].startswith("! http://127.0.0.1:1: http://127.0.0.1:1/metrics cannot be reached: ")
    assert any(line.startswith("orders ") for line in lines)
    assert any(line.split() == ["billing", "33"] for line in lines)


@pytest.mark.slow
def test_what_is_no_text_of_metrics_is_said_so() -> None:
    with pages("process_resident_memory_bytes one\n") as one:
        document = top(one, options=("--json",)).json
    assert "could not convert" in document["nodes"][one]["error"]


@pytest.mark.slow
def test_a_node_that_was_restarted_has_no_rates() -> None:
    with pages(node_text(100), node_text(5)) as one:
        document = top(one, options=("--json",)).json
    assert document["nodes"][one]["records_in_per_s"] is None


def test_a_node_of_ours() -> None:
    """Each name that is looked for is one that a node has."""
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        assert node.http_url is not None
        command = CommandLine(node.bootstrap_servers)
        command.ok("produce", "orders", "--create", stdin="a\nb\n")
        command.ok("consume", "orders", "--from-beginning", "--exit")
        document = top(node.http_url, options=("--json",)).json
        found = document["nodes"][node.http_url]
        assert [name for name, value in found.items() if value is None] == []
        assert "orders" in document["topics"]


@pytest.mark.witness
def test_any_cluster_by_the_protocol(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, stdin="a\nb\nc\n")
    group = f"group-of-{topic}"
    ottla.ok("consume", topic, "--group", group, "--from-beginning", "--count", "2")
    document = ottla.ok("top", "--once", "--json", "--interval", "0.2").json
    found = document["topics"][topic]
    assert (found["partitions"], found["records_per_s"]) == (2, 0)
    assert found["size_bytes"] > 0
    assert document["groups"][group]["lag"] == 1
    (broker,) = document["brokers"]
    assert broker["leads"] == broker["in_sync"] >= 2
    ended = ottla.ok("top", "--once", "--interval", "0.2", "--rows", "10000")
    assert any(line.split()[:2] == [topic, "2"] for line in ended.out.splitlines())


def test_a_cluster_that_does_not_answer(offline: CommandLine) -> None:
    assert offline("top", "--once").status == 3


@pytest.mark.slow
def test_in_a_terminal_it_draws_until_it_is_interrupted() -> None:
    """On a real terminal: whole screens that move, and the old screen back at the end."""
    terminal, its_side = pty.openpty()
    fcntl.ioctl(its_side, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("OTTLA_BOOTSTRAP_SERVERS", None)
    with pages(*(node_text(n) for n in range(0, 100_000, 100))) as url:
        command = [sys.executable, "-m", "ottla", "top", "--http", url, "--interval", "0.2"]
        process = subprocess.Popen(command, stdin=its_side, stdout=its_side, stderr=its_side, env=environment)
        os.close(its_side)
        try:
            drawn = read_terminal(terminal, lambda text: text.count("orders") >= 3)
            assert ENTER_SCREEN in drawn
            process.send_signal(signal.SIGINT)
            rest = read_terminal(terminal, lambda text: LEAVE_SCREEN in text)
            assert "Traceback" not in drawn + rest
            assert process.wait(DEADLINE_S) in (0, 130)
        finally:
            process.kill()
            process.wait()
            os.close(terminal)


def read_terminal(terminal: int, enough: Callable[[str], bool]) -> str:
    text, deadline = "", time.monotonic() + DEADLINE_S
    while not enough(text):
        assert time.monotonic() < deadline, text
        if select.select([terminal], [], [], 0.5)[0]:
            text += os.read(terminal, 65_536).decode(errors="replace")
    return text


def test_a_share_group_has_the_lag_that_its_broker_knows(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, *"abc", "-p", "0")
    group = f"workers-of-{topic}"
    ottla.ok("configs", "alter", "--group", group, "--set", "share.auto.offset.reset=earliest")
    ottla.ok("consume", topic, "--share", group, "--count", "1", "--timeout", "60")
    document = ottla.ok("top", "--once", "--json", "--interval", "0.2").json
    assert (document["groups"][group]["type"], document["groups"][group]["lag"]) == ("share", 2)
