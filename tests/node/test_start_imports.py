"""A node imports nothing that it does not need at once: that decides how fast it starts and how small it
stays.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Starts a node, and when it says that it is ready, prints what is imported and stops it.
START = """
import os, signal, sys
from ottla.cli.main import main

class Out:
    def write(self, text):
        if "is ready" in text:
            sys.__stdout__.write(" ".join(sys.modules))
            os.kill(os.getpid(), signal.SIGTERM)
    def flush(self):
        pass

sys.stdout = Out()
sys.exit(main(["start", "--data-dir", sys.argv[1], "--listen", "127.0.0.1:0"]))
"""
LATER = {
    *("click", "rich", "pyarrow", "numpy", "pyspark", "crc32c", "re2"),
    *("argparse", "email", "http", "importlib.metadata", "pathlib", "tempfile", "unittest"),
    *(
        "ottla.client",
        "ottla.console.console",
        "ottla.console.in_node",
        "ottla.coordinator",
        "ottla.sim",
        "ottla.spark",
    ),
    *("ottla.remote", "ottla.registry", "ottla.tables", "ottla.node.telemetry.client_telemetry"),
    *("cryptography", "ottla.security.authorizer", "ottla.security.sasl", "ottla.security.tls"),
    *(
        "ottla.node.api.group_requests",
        "ottla.node.coordinators.add_partitions_to_txn",
        "ottla.records.arrow",
        "ottla.testing",
    ),
}


@pytest.mark.slow
def test_a_node_is_ready_without_what_it_does_not_need_yet(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    assert "ottla.node.node" in modules
    assert not LATER & set(modules)
    # The node's own broker registers by the same handlers as others.
    handlers = {name for name in modules if name.startswith("ottla.node.api.handlers.")}
    assert handlers == {f"ottla.node.api.handlers.broker_{what}" for what in ("registration", "heartbeat")}
    messages = [name for name in modules if name.startswith("ottla.protocol.messages.")]
    assert len(messages) < 30, messages


# Starts a node, prints which thread imports the log cleaner, and stops it.
WATCH = """
import os, signal, sys, threading
from ottla.cli.main import main

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ottla.log.cleaner.compaction":
            sys.stderr.write(f"in the main thread: {threading.current_thread() is threading.main_thread()}")
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
sys.exit(main(["start", "--data-dir", sys.argv[1], "--listen", "127.0.0.1:0"]))
"""


@pytest.mark.slow
def test_the_event_loop_does_not_wait_for_the_import_of_the_cleaner(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert "in the main thread: False" in done.stderr


# Starts a node, sends it a first request of each API, and prints what of ottla its event loop imports.
FIRST_REQUESTS = """
import contextlib, sys, threading
from bench.attack import NOT_SENT
from tests.support.messages import MessageMaker
from tests.support.wire import WireClient
from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API
from ottla.testing.local_node import LocalNode

elsewhere = []

class Finder:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread().name == "ottla-local-node" and name.startswith("ottla."):
            print(name)
        elif name.startswith("ottla.node.api.handlers."):
            elsewhere.append(name)

apis = [API[key] for key, route in ROUTES.items() if route.name not in NOT_SENT]
drawn = [(MessageMaker(api.key).make(api.request_class, api.max_version), api.max_version) for api in apis]
with LocalNode() as node, WireClient(node.bootstrap_servers) as wire:
    sys.meta_path.insert(0, Finder())
    for request, version in drawn:
        for name in ("timeout_ms", "max_wait_ms", "rebalance_timeout_ms", "session_timeout_ms"):
            if hasattr(request, name):
                setattr(request, name, 0)
        if getattr(request, "acks", None) != 0:
            with contextlib.suppress(OSError):
                wire.ask(request, version)
    print(len(elsewhere))
"""


@pytest.mark.slow
def test_the_event_loop_does_not_wait_for_the_import_of_what_answers_a_request() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_REQUESTS],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    *on_the_loop, elsewhere = done.stdout.splitlines()
    assert on_the_loop == []
    assert int(elsewhere) > 70, elsewhere


# Starts a node, has it find the coordinator of a group, and prints which thread imports the coordinator.
FIRST_GROUP = """
import sys, threading
from tests.support.wire import WireClient
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.testing.local_node import LocalNode

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ottla.coordinator.group.service":
            print("imported by", threading.current_thread().name)

with LocalNode() as node, WireClient(node.bootstrap_servers) as wire:
    sys.meta_path.insert(0, Finder())
    wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["workers"]), 4)
"""


@pytest.mark.slow
def test_the_event_loop_does_not_wait_for_the_import_of_the_group_coordinator() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_GROUP],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert "imported by " in done.stdout
    assert "ottla-local-node" not in done.stdout  # the thread of the event loop
