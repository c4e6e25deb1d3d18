"""The controller's probes of brokers that miss heartbeats: one that is only slow has its full session."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.node.cluster import broker_liveness_probe
from ottla.node.cluster.broker_liveness_probe import BrokerLivenessProbe
from ottla.protocol.security_protocol import SecurityProtocol
from ottla.runtime.runtime import Runtime

BROKER, EPOCH = 1, 5


class ActiveController:
    """Misses the heartbeats of one broker, and hears all others."""

    def __init__(self) -> None:
        self.fenced: list[tuple[int, int]] = []

    def silent_brokers(self, _silent_ms: int) -> set[tuple[int, int]]:
        return {(BROKER, EPOCH)}

    def brokers_without_heartbeat(self, _ms: int) -> set[tuple[int, int]]:
        return set()

    def brokers_not_heard_since(self, _since_ns: int) -> set[tuple[int, int]]:
        return {(BROKER, EPOCH)}

    def is_followed_since(self, _since_ns: int) -> bool:
        return True

    async def fence_gone_broker(self, broker: int, epoch: int) -> bool:
        self.fenced.append((broker, epoch))
        return True


async def probe(runtime: Runtime, port: int) -> list[tuple[int, int]]:
    """Probe a broker at this port; return the brokers that were fenced."""
    active = ActiveController()
    endpoint = SimpleNamespace(host="127.0.0.1", port=port, security_protocol=SecurityProtocol.PLAINTEXT)
    registration = SimpleNamespace(epoch=EPOCH, listeners={"PLAINTEXT": endpoint})
    parts: list[Any] = [
        SimpleNamespace(
            current=SimpleNamespace(
                number=lambda name: 900,
                node_id=0,
                inter_broker_listener="PLAINTEXT",
                security_protocols={"PLAINTEXT": SecurityProtocol.PLAINTEXT},
            )
        ),
        SimpleNamespace(image=SimpleNamespace(cluster=SimpleNamespace(brokers={BROKER: registration}))),
        SimpleNamespace(current=active),
    ]
    probes = BrokerLivenessProbe(runtime, *parts)
    probes.probe_silent_brokers()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("probe of")))
    await probes.close()
    return active.fenced


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_liveness_probe, "_REPEAT_SECONDS", 0.0)


async def test_a_broker_whose_process_is_busy_has_its_full_session() -> None:
    """The system takes its connections, and the process does not answer, as one that waits for its disk."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        assert await probe(Runtime.real(), listening.getsockname()[1]) == []


async def test_a_broker_whose_machine_does_not_answer_is_fenced_before_its_session_ends() -> None:
    class Silent:
        async def connect(self, *_args: Any, timeout_ms: int, **_options: Any) -> Any:
            raise TimeoutError(f"no answer within {timeout_ms} ms")

    network: Any = Silent()
    assert await probe(dataclasses.replace(Runtime.real(), network=network), 1) == [(BROKER, EPOCH)]


async def test_a_broker_whose_port_refuses_is_fenced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert await probe(Runtime.real(), port) == [(BROKER, EPOCH)]
