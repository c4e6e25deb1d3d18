"""Drawn attacks on one node, and what a bystander sees of them: `python -m bench.attack --minutes 60`.

Processes draw requests of all APIs, records to store, settings and schemas, with weights towards size and
nesting: lists of thousands, batches that inflate to a hundred times their size, definitions that are deep,
wide or refer to themselves. All is well-formed, so that it gets as far as it can. A bystander asks for
ApiVersions all the time. Printed are its longest wait, the longest turn of the node's event loop by CPU time,
which other work on the machine does not change, and the node's memory. A seed repeats what each attacker
sends.

`--largest` sends the largest requests that a node takes instead, one at a time: for each list of each API one
that has as many entries as a request may have, directly, and to a controller also in an envelope, as brokers
forward requests. Printed is the longest turn for each.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.messages import MessageMaker
from tests.support.node_process import NodeProcess
from tests.support.wire import CLOSED, WireClient

from bench.bystander import bomb, create_topics, resident_mb
from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API, ListenerType
from ottla.protocol.headers import request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.envelope import EnvelopeRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.schema import Field, Request, Struct
from ottla.records.builder import build_batch
from ottla.security.principal import KafkaPrincipal
from ottla.testing.cluster_plan import free_ports

CLIENTS: Final = 8
TOPICS: Final = {
    "plain": {},
    "zstd": {"compression.type": "zstd", "compression.zstd.level": "19"},
    "gzip": {"compression.type": "gzip"},
    "compact": {"cleanup.policy": "compact"},
}
PARTITIONS: Final = 4
# The most entries of all lists of a request, and the most bytes of one string.
MAX_ENTRIES: Final = 20_000
MAX_BYTES: Final = 30_000
# These would end the run rather than the node, or stand for another node.
NOT_SENT: Final = frozenset(
    ("UnregisterBroker", "ControlledShutdown", "RemoveRaftVoter", "AddRaftVoter", "UpdateRaftVoter")
)
_NODES: Final = frozenset(
    ("Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "BrokerRegistration", "BrokerHeartbeat")
)
SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "log.message.timestamp.before.max.ms": str(2**62),
    "log.retention.ms": "-1",
    "http.listener": "http://127.0.0.1:0",
}
TIMEOUT_S: Final = 600.0
MAX_STRING: Final = 32_767


class LargeMaker(MessageMaker):
    """Makes requests with a few very long lists and strings, about topics and groups that exist."""

    def __init__(self, seed: object) -> None:
        super().__init__(seed)
        self._left = MAX_ENTRIES

    def _value(self, field: Field, version: int, flexible: bool) -> Any:
        if field.kind != "array" or self._left <= 0 or self.random.random() < 0.6:
            return super()._value(field, version, flexible)
        size = min(int(10 ** self.random.uniform(1, 4.3)), self._left)
        self._left -= size
        if self.random.random() < 0.3:  # the same entry again and again
            return [self._item(field, version, flexible)] * size
        return [self._item(field, version, flexible) for _ in range(size)]

    def _plain(self, kind: str, name: str) -> Any:
        if name in ("topic", "name", "topic_name", "resource_name") and self.random.random() < 0.7:
            return self.random.choice(sorted(TOPICS))
        if name in ("group_id", "group", "key", "transactional_id") and self.random.random() < 0.7:
            return f"group-{self.random.randrange(20)}"
        if name in ("partition", "partition_index", "index", "partition_indexes", "partitions"):
            return self.random.randrange(PARTITIONS)
        if kind in ("string", "bytes") and self._left > 0 and self.random.random() < 0.02:
            size = int(10 ** self.random.uniform(2, 4.4))
            self._left -= size // 10
            return "a" * size if kind == "string" else self.random.randbytes(min(size, MAX_BYTES))
        return super()._plain(kind, name)


class LargestMaker(MessageMaker):
    """Makes requests of which one list is as long as it may be, and the others have one entry. Its entries
    have names of their own, or are all alike.
    """

    def __init__(self, place: tuple[str, ...], *, alike: bool, entries: int = 0) -> None:
        super().__init__(place)
        self._place = place
        self._entries = entries or LARGEST_ENTRIES
        self._alike = alike
        self._at: list[str] = []
        self._number = 0

    def _value(self, field: Field, version: int, flexible: bool) -> Any:
        self._at.append(field.name)
        try:
            if field.kind == "array":
                size = self._entries // weight(field) if tuple(self._at) == self._place else 1
                return [self._item(field, version, flexible) for _ in range(size)]
            if field.kind == "struct":
                assert field.struct is not None
                return self._struct(field.struct, version, flexible)
            return self._plain(field.kind, field.name)
        finally:
            self._at.pop()

    def _plain(self, kind: str, name: str) -> Any:
        if name in USUAL:
            return USUAL[name]
        self._number += not self._alike
        in_long_list = tuple(self._at[: len(self._place)]) == self._place
        if kind == "string":
            return f"{name}-{self._number}" if in_long_list and not self._alike else "plain"
        if kind in ("int32", "uint16", "uint32"):
            return self._number % 60_000 if in_long_list else 0
        if kind == "uuid":
            return self._number.to_bytes(16, "big")
        return 0 if kind.startswith(("int", "uint")) else super()._plain(kind, name)


# What fields have in the largest requests: what gets far.
USUAL: Final = {
    "resource_type": 2,
    "resource_type_filter": 2,
    "resource_pattern_type": 3,
    "pattern_type_filter": 1,
    "operation": 3,
    "permission_type": 3,
    "config_operation": 0,
    "entity_type": "user",
    "validate_only": True,
    "key_type": 0,
    "acks": 1,
    "timeout_ms": 100,
    "max_wait_ms": 100,
    "rebalance_timeout_ms": 100,
    "session_timeout_ms": 6_000,
    "replica_id": -1,
    "timestamp": 1,
    "iterations": 4_096,
    "mechanism": 1,
    "generation_id_or_member_epoch": -1,
    "current_leader_epoch": -1,
}
# The decoder refuses more entries of a request (protocol/decoder.py).
LARGEST_ENTRIES: Final = 99_900


def weight(field: Field) -> int:
    """How many entries each entry of a list has, with one in each list inside of it."""
    inner = () if field.struct is None else field.struct.FIELDS
    return (field.kind == "array") + sum(weight(each) for each in inner)


def lists_of(cls: type[Struct], version: int, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a message has lists."""
    for each in cls.FIELDS:
        if not each.in_version(version):
            continue
        at = (*place, each.name)
        if each.kind == "array":
            yield at
        if each.struct is not None:
            yield from lists_of(each.struct, version, at)


def largest_requests(kind: ListenerType) -> Iterator[tuple[str, Request, int]]:
    for key, route in sorted(ROUTES.items()):
        if kind not in route.listeners or route.name in NOT_SENT | _NODES:
            continue
        version = route.max_version(unstable=False)
        for place in lists_of(API[key].request_class, version):
            for alike in (False, True):
                request = LargestMaker(place, alike=alike).make(API[key].request_class, version)
                yield f"{route.name}.{'.'.join(place)}{' alike' * alike}", request, version


def in_envelope(request: Request, version: int) -> EnvelopeRequest:
    frame = b"".join(request_parts(version, 1, None, request))[4:]
    address = bytes((127, 0, 0, 1))
    principal = KafkaPrincipal("User", "x").encode()
    return EnvelopeRequest(request_data=frame, request_principal=principal, client_host_address=address)


def run_largest(directory: Path, only: str, report: Callable[[str], None] = print) -> None:
    (port,) = free_ports(1)
    listeners = f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}"
    given = {**SETTINGS, "listeners": listeners, "controller.quorum.voters": f"1@127.0.0.1:{port}"}
    for topic in ("offsets", "transaction.state.log", "share.coordinator.state"):
        given[f"{topic}.replication.factor" if "log" in topic else f"{topic}.topic.replication.factor"] = "1"
    options = [option for name, value in given.items() for option in ("--set", f"{name}={value}")]
    node = NodeProcess(directory, *options, listen=None)
    at_controller = WireClient(f"127.0.0.1:{port}", timeout_s=TIMEOUT_S)
    with node, WireClient(node.bootstrap, timeout_s=TIMEOUT_S) as wire, at_controller:
        create_topics(wire, TOPICS, PARTITIONS)

        def measured(name: str, target: WireClient, request: Request, version: int) -> None:
            if only not in name:
                return
            for _ in range(2):  # the first time modules are loaded and decoders made
                status(node, Outcome())
                answer = target.ask(request, version)
                target.close()
                outcome = Outcome()
                status(node, outcome)
            report(
                f"{outcome.longest_turn_ms:7.1f} ms  {name}  {resident_mb(node.pid):.0f} MB  "
                f"{type(answer).__name__}  {outcome.culprit[:400] if outcome.longest_turn_ms > 10 else ''}"
                f"{node.stderr().splitlines()[-1] if answer is CLOSED else ''}"
            )

        for name, request, version in largest_requests(ListenerType.BROKER):
            measured(name, wire, request, version)
        for name, request, version in largest_requests(ListenerType.CONTROLLER):
            measured(f"{name} (controller)", at_controller, request, version)
            if API[request.API_KEY].forwardable:
                measured(f"{name} (envelope)", at_controller, in_envelope(request, version), 0)


def large_request(chance: random.Random, wire: WireClient) -> str:
    names = {key: API[key].name for key in ROUTES}
    keys = sorted(key for key, name in names.items() if name not in NOT_SENT | _NODES)
    api = API[chance.choice(keys)]
    version = chance.randint(api.min_version, api.max_version)
    request = LargeMaker(chance.random()).make(api.request_class, version)
    for name in ("timeout_ms", "timeoutMs", "max_wait_ms", "rebalance_timeout_ms", "session_timeout_ms"):
        if hasattr(request, name):
            setattr(request, name, chance.choice((0, 100, 6_000)))
    if getattr(request, "acks", None) == 0:
        request.acks = 1  # type: ignore[attr-defined]
    wire.ask(request, version)
    return api.name


def stored_batches(chance: random.Random, wire: WireClient) -> str:
    topic = chance.choice(sorted(TOPICS))
    match chance.randrange(3):
        case 0:
            batch = bomb(chance.choice((1_000_000, 20_000_000, 250_000_000)))
        case 1:
            count = chance.choice((1_000, 20_000, 100_000))
            batch = build_batch([(number % 1000, b"%d" % number, b"v") for number in range(count)])
        case _:
            text = b" ".join(b"%d" % (number * 7919) for number in range(20_000))
            batch = build_batch([(1, None, text[at : at + 900]) for at in range(0, len(text), 900)])
    parts = [PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS)]
    data = [TopicProduceData(name=topic, partition_data=parts)]
    wire.ask(ProduceRequest(acks=1, timeout_ms=60_000, topic_data=data), 9)
    return "records"


def searched_batches(chance: random.Random, wire: WireClient) -> str:
    parts = [
        ListOffsetsPartition(
            partition_index=index, current_leader_epoch=-1, timestamp=chance.choice((1, 500, 999, 10**9))
        )
        for index in range(PARTITIONS)
    ]
    topics = [ListOffsetsTopic(name=name, partitions=parts) for name in TOPICS]
    wire.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
    return "timestamps"


def nested(chance: random.Random) -> tuple[str, str]:
    """A definition of a schema that is deep, wide, or refers to itself; and its type."""
    depth = chance.choice((3, 60, 900, 20_000))
    match chance.randrange(6):
        case 0:
            return "AVRO", '{"type":"array","items":' * depth + '"int"' + "}" * depth
        case 1:
            fields = '{"name":"a","type":"a"},{"name":"b","type":["null","a"]}'
            return "AVRO", '{"type":"record","name":"a","fields":[' + fields + "]}"
        case 2:
            fields = ",".join(f'{{"name":"f{number}","type":"string"}}' for number in range(depth))
            return "AVRO", '{"type":"record","name":"wide","fields":[' + fields + "]}"
        case 3:
            return "JSON", '{"properties":{"a":' * depth + '{"pattern":"^(a|a)*$"}' + "}}" * depth
        case 4:
            twice = '{"$ref":"#/definitions/NEXT"},{"$ref":"#/definitions/NEXT"}'
            doubled = ",".join(
                f'"d{at}":{{"allOf":[{twice}]}}'.replace("NEXT", f"d{at + 1}") for at in range(40)
            )
            return "JSON", '{"definitions":{' + doubled + ',"d40":{}},"$ref":"#/definitions/d0"}'
        case _:
            return "PROTOBUF", 'syntax="proto3";' + "message a{" * depth + "a f = 1;" + "}" * depth


def settings(chance: random.Random, wire: WireClient) -> str:
    kind, definition = nested(chance)
    schema = kind.lower() + ":" + definition
    name, value = chance.choice(
        (
            ("table.schema", schema[:MAX_STRING]),
            ("table.schema", definition[:MAX_STRING]),
            ("compression.type", chance.choice(("zstd", "gzip", "lz4", "producer"))),
            ("cleanup.policy", "compact," * 4_000),
            ("leader.replication.throttled.replicas", "0:0," * 5_000),
        )
    )
    configs = [AlterableConfig(name=name, config_operation=0, value=value)]
    resources = [AlterConfigsResource(resource_type=2, resource_name="plain", configs=configs)]
    wire.ask(IncrementalAlterConfigsRequest(resources=resources, validate_only=chance.random() < 0.5), 1)
    return name


def registered(chance: random.Random, address: str) -> str:
    kind, definition = nested(chance)
    subject = f"subject-{chance.randrange(10)}"
    path = chance.choice(
        (
            f"/subjects/{subject}/versions",
            f"/subjects/{subject}",
            f"/compatibility/subjects/{subject}/versions?verbose=true",
        )
    )
    body = json.dumps({"schemaType": kind, "schema": definition})
    if chance.random() < 0.1:
        body = "[" * 1_000_000 if chance.random() < 0.5 else "[" + "1," * 1_000_000 + "1]"
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        connection.request("POST", "/schema-registry" + path, body, headers)
        connection.getresponse().read()
    return "schemas"


def attack(bootstrap: str, web: str, seed: str, sent: Any) -> None:
    chance = random.Random(seed)
    acts: list[tuple[float, Callable[[WireClient], str]]] = [
        (0.6, lambda wire: large_request(chance, wire)),
        (0.1, lambda wire: stored_batches(chance, wire)),
        (0.05, lambda wire: searched_batches(chance, wire)),
        (0.1, lambda wire: settings(chance, wire)),
        (0.15, lambda _: registered(chance, web)),
    ]
    weights, calls = zip(*acts, strict=True)
    while True:
        with WireClient(bootstrap, timeout_s=TIMEOUT_S) as wire, contextlib.suppress(OSError, AssertionError):
            for _ in range(20):
                sent.put(chance.choices(calls, weights)[0](wire))


@dataclass(slots=True)
class Outcome:
    longest_wait_ms: float = 0.0
    longest_turn_ms: float = 0.0
    culprit: str = ""
    before_mb: float = 0.0
    most_mb: float = 0.0
    asked: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    """What the node said about turns that took long."""

    def __str__(self) -> str:
        return (
            f"{sum(self.sent.values())} attacks of {len(self.sent)} kinds; a bystander asked {self.asked} "
            f"times and waited {self.longest_wait_ms:.0f} ms at most; longest turn "
            f"{self.longest_turn_ms:.0f} ms of CPU time ({self.culprit[:300]}); {self.before_mb:.0f} MB "
            f"before, {self.most_mb:.0f} MB at most; {len(self.errors)} errors logged"
        )


@contextlib.contextmanager
def attackers(node: NodeProcess, web: str, seed: int, clients: int) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    sent = context.Queue()
    processes = [
        context.Process(target=attack, args=(node.bootstrap, web, f"{seed}/{number}", sent), daemon=True)
        for number in range(clients)
    ]
    for process in processes:
        process.start()
    try:
        yield sent
    finally:
        for process in processes:
            process.kill()
            process.join()


def run(
    directory: Path, seconds: float, seed: int, clients: int = CLIENTS, report: Callable[[str], None] = print
) -> Outcome:
    outcome = Outcome()
    options = [option for name, value in SETTINGS.items() for option in ("--set", f"{name}={value}")]
    with NodeProcess(directory, *options) as node, WireClient(node.bootstrap, timeout_s=TIMEOUT_S) as wire:
        create_topics(wire, TOPICS, PARTITIONS)
        web = node.ready_line.rpartition("http://")[2]
        outcome.before_mb = resident_mb(node.pid)
        status(node, outcome)
        outcome.longest_turn_ms = 0.0
        with attackers(node, web, seed, clients) as sent:
            ends = time.monotonic() + seconds
            reported = time.monotonic()
            while time.monotonic() < ends or not outcome.sent:
                began = time.perf_counter()
                wire.ask(ApiVersionsRequest(client_software_name="b", client_software_version="1"), 3)
                outcome.asked += 1
                waited_ms = (time.perf_counter() - began) * 1000
                outcome.longest_wait_ms = max(outcome.longest_wait_ms, waited_ms)
                outcome.most_mb = max(outcome.most_mb, resident_mb(node.pid))
                while not sent.empty():
                    outcome.sent[sent.get()] += 1
                if time.monotonic() - reported > 60:
                    reported = time.monotonic()
                    status(node, outcome)
                    report(str(outcome))
                time.sleep(0.002)
        status(node, outcome)
        wire.ask(ApiVersionsRequest(client_software_name="b", client_software_version="1"), 3)
        lines = node.stderr().splitlines()
        outcome.errors = [line for line in lines if "level=error" in line]
        outcome.turns = [line for line in lines if "loop_watchdog" in line]
    return outcome


def status(node: NodeProcess, outcome: Outcome) -> None:
    """Take the longest turn since the last time from the node."""
    os.kill(node.pid, signal.SIGUSR1)
    loop = node.read_status()["loop"]
    if loop["recent_cpu_ms"] > outcome.longest_turn_ms:
        outcome.longest_turn_ms, outcome.culprit = loop["recent_cpu_ms"], loop["recent_cpu_culprit"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--largest", nargs="?", const="", metavar="PART OF A NAME")
    options = parser.parse_args()
    if options.largest is not None:
        with tempfile.TemporaryDirectory(prefix="ottla-attack-") as directory:
            run_largest(Path(directory), options.largest)
        return
    print(f"--seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ottla-attack-") as directory:
        outcome = run(Path(directory), options.minutes * 60, options.seed, options.clients)
    print(outcome)
    for line in [*outcome.errors[:20], *outcome.turns[-20:]]:
        print(line[:500])
    for name, times in outcome.sent.most_common():
        print(f"{times:8} {name}")


if __name__ == "__main__":
    main()
