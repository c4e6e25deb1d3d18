"""One span for each request, from a node to a collector."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.collector import Collector

from ottla.node.config.errors import NodeFailed
from ottla.testing.local_node import LocalNode

# A process of its own, as the tracer provider is one for the process.
PROGRAM = """
import sys
from ottla import blocking
from ottla.testing.local_node import LocalNode

settings = {"telemetry.traces.enable": "true", "telemetry.otlp.endpoint": sys.argv[1]}
with LocalNode(settings, data_dir=sys.argv[2]) as node:
    with blocking.Producer(node.bootstrap_servers, client_id="spans", enable_metrics_push=False) as producer:
        producer.send("t", b"value")
    consumer = blocking.Consumer(node.bootstrap_servers, auto_offset_reset="earliest")
    with consumer:
        consumer.assign([("t", 0)])
        while not consumer.poll():
            pass
"""


def values(attributes: list[dict[str, Any]]) -> dict[str, str]:
    return {each["key"]: next(iter(each["value"].values())) for each in attributes}


@pytest.mark.slow
def test_each_request_gets_a_span(tmp_path: Path) -> None:
    with Collector() as collector:
        command = [sys.executable, "-c", PROGRAM, collector.address, str(tmp_path / "data")]
        subprocess.run(command, check=True, timeout=120)
        bodies = [json.loads(body) for path, _, body in collector.requests if path == "/v1/traces"]
    resources = [each for body in bodies for each in body["resourceSpans"]]
    about = values(resources[0]["resource"]["attributes"])
    assert (about["service.name"], about["service.instance.id"]) == ("ottla", "1")
    spans = [span for each in resources for scope in each["scopeSpans"] for span in scope["spans"]]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        by_name.setdefault(span["name"], []).append(span)
    (produce,) = by_name["Produce"]
    assert {"ApiVersions", "Metadata", "Fetch"} <= set(by_name)
    attributes = values(produce["attributes"])
    assert attributes["messaging.client.id"] == "spans"
    assert attributes["network.peer.address"] == "127.0.0.1"
    assert produce["kind"] == 2  # SERVER
    assert len(produce["traceId"]) == 32
    assert int(produce["endTimeUnixNano"]) > int(produce["startTimeUnixNano"])


def test_traces_that_would_go_nowhere_are_a_mistake() -> None:
    with (
        pytest.raises(NodeFailed, match=r"set telemetry\.otlp\.endpoint"),
        LocalNode({"telemetry.traces.enable": True}),
    ):
        pass
