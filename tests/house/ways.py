"""`python -m tests.house.ways [--alone | --write] [way]`: the files of Ottla that requests run through.

Three brokers, which are controllers too, run in one process; one with `--alone`. A client sends a request
several times, and the functions that run in the nodes meanwhile are profiled: a file counts if one of its
functions ran every time, on whichever node. So the way of a record that is produced with acks=all has the
files by which followers fetch it, and those by which the leader learns that they have it. What nodes do in
the background does not run each time.

`--write` puts the lists into `docs/ways.md`.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, Protocol, TypeVar

import ottla
from ottla.metadata.log.bootstrap_metadata import format_directory
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_fetch
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.names import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from ottla.records.builder import build_batch
from ottla.runtime.runtime import Runtime
from ottla.testing.cluster_plan import free_ports
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, fetch_request, produce_request

PAGE: Final = Path(__file__).parents[2] / "docs/ways.md"
_ROOT: Final = str(Path(ottla.__file__).parent) + "/"
_WARM_UP, _SAMPLES = 3, 6
_TIMEOUT_MS: Final = 60_000
_TOPIC: Final = "way"
# By the kinds of FindCoordinator. A share group has its state at another coordinator than its members.
_TOPICS_OF_COORDINATORS: Final = {
    0: (CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC),
    1: (TRANSACTION_STATE_TOPIC,),
}


class Files(NamedTuple):
    """Those that ran each time, and those that ever ran."""

    always: set[str]
    ever: set[str]


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

    def files_of(self, ask: Callable[[int], None], is_done: Callable[[], bool] = lambda: True) -> Files:
        """The files that run while `ask` waits for its response, and until `is_done`."""
        always: set[str] | None = None
        ever: set[str] = set()
        for turn in range(_WARM_UP + _SAMPLES):
            files: set[str] = set()
            self.files = files
            ask(turn)
            wait_until(is_done)
            self.files = None
            if turn >= _WARM_UP:
                always = files if always is None else always & files
            ever |= files
        assert always
        return Files(always, ever)


class _Cluster:
    """Nodes on one event loop, in a thread of its own."""

    def __init__(self, directory: str, count: int) -> None:
        self._directory: Final = directory
        self._count: Final = count
        self._stop = asyncio.Event()
        self._ready: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="nodes")
        self.nodes: list[Node] = []

    def __enter__(self) -> _Cluster:
        self._thread.start()
        assert self._ready.wait(120), "the nodes do not get ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(120)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        runtime, ports = Runtime.real(guest=True), free_ports(self._count)
        voters = ",".join(f"{id}@127.0.0.1:{port}" for id, port in enumerate(ports))
        for id, port in enumerate(ports):
            data = f"{self._directory}/{id}"
            runtime.disk.make_dirs(data)
            format_directory(
                runtime.disk, runtime.random, runtime.clock, data, cluster_id="w" * 22, node_id=id
            )
            self.nodes.append(
                Node(
                    runtime,
                    NodeConfig(
                        {
                            "process.roles": "broker,controller",
                            "node.id": str(id),
                            "log.dirs": data,
                            "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
                            "controller.quorum.voters": voters,
                            "min.insync.replicas": str(min(2, self._count)),
                            "offsets.topic.num.partitions": "1",
                            "transaction.state.log.num.partitions": "1",
                            "share.coordinator.state.topic.num.partitions": "1",
                            "http.listener": "",
                            # The way of the requests that the lane leaves to the handler.
                            "native.lane.enable": "false",
                        }
                    ),
                )
            )
        try:
            await asyncio.gather(*(node.start() for node in self.nodes))
            self._ready.set()
            await self._stop.wait()
        finally:
            await asyncio.gather(*(node.stop() for node in self.nodes))
            runtime.close()

    def at(self, id: int) -> str:
        return f"127.0.0.1:{self.nodes[id].client_endpoints()[0].port}"

    @property
    def active_controller(self) -> int:
        (id,) = (
            node.config.node_id
            for node in self.nodes
            if node.quorum is not None and node.quorum.active_controller.current is not None
        )
        return id


class Ways:
    def __init__(self, cluster: _Cluster, profile: _Profile) -> None:
        self._cluster: Final = cluster
        self._profile: Final = profile
        with WireClient(cluster.at(0)) as client:
            self._create(client, _TOPIC)
            wait_until(lambda: all(_TOPIC in node.image.topics.by_name for node in cluster.nodes))
            answer = client.get(
                MetadataRequest(topics=[MetadataRequestTopic(name=_TOPIC)]), 12, MetadataResponse
            )
            self._topic_id = answer.topics[0].topic_id

    def a_topics_creation(self) -> Files:
        """Asked of a broker that forwards it to the active controller."""
        nodes = range(len(self._cluster.nodes))
        other = next((id for id in nodes if id != self._cluster.active_controller), 0)
        with WireClient(self._cluster.at(other)) as client:
            return self._profile.files_of(lambda turn: self._create(client, f"made-{turn}"))

    def a_produce_request(self) -> Files:
        """With acks=all: two followers fetch the record before the response."""
        with WireClient(self._cluster.at(0)) as client:
            return self._profile.files_of(lambda _: _produce(client))

    def a_fetch(self) -> Files:
        request = fetch_request(self._topic_id, partition_max_bytes=100_000, max_wait_ms=500, min_bytes=1)

        def fetch(_: int) -> None:
            answer = client.get(request, 13, FetchResponse)
            assert answer.responses[0].partitions[0].records

        with WireClient(self._cluster.at(0)) as client:
            _produce(client)
            return self._profile.files_of(fetch)

    def a_group_heartbeat(self) -> Files:
        """Of a member that joins: the coordinator writes records."""

        def join(turn: int) -> None:
            request = ConsumerGroupHeartbeatRequest(
                group_id="group",
                member_id=f"member-{turn}",
                member_epoch=0,
                rebalance_timeout_ms=_TIMEOUT_MS,
                subscribed_topic_names=[_TOPIC],
                topic_partitions=[],
            )
            _once_loaded(lambda: client.get(request, 1, ConsumerGroupHeartbeatResponse))

        with self._coordinator("group", 0) as client:
            return self._profile.files_of(join)

    def a_share_fetch(self) -> Files:
        """Which accepts what the one before has acquired, and acquires what is new."""
        with self._coordinator("shared", 0) as client:
            heartbeat = ShareGroupHeartbeatRequest(
                group_id="shared", member_id="m" * 22, member_epoch=0, subscribed_topic_names=[_TOPIC]
            )
            _once_loaded(lambda: client.get(heartbeat, 1, ShareGroupHeartbeatResponse))
        acquired: list[share_fetch.AcknowledgementBatch] = []
        epoch = 0

        def fetch(_: int) -> None:
            nonlocal epoch
            partition = share_fetch.FetchPartition(partition_index=0, acknowledgement_batches=acquired[:])
            request = share_fetch.ShareFetchRequest(
                group_id="shared",
                member_id="m" * 22,
                share_session_epoch=epoch,
                max_wait_ms=5_000,
                min_bytes=1,
                max_records=100,
                batch_size=100,
                topics=[share_fetch.FetchTopic(topic_id=self._topic_id, partitions=[partition])],
            )
            answer = client.get(request, 1, share_fetch.ShareFetchResponse)
            assert answer.error_code == 0, answer
            epoch += 1
            acquired[:] = [
                share_fetch.AcknowledgementBatch(
                    first_offset=each.first_offset, last_offset=each.last_offset, acknowledge_types=[1]
                )
                for topic in answer.responses
                for part in topic.partitions
                for each in part.acquired_records
            ]

        def next_fetch(turn: int) -> None:
            files, self._profile.files = self._profile.files, None
            _produce(producer)
            self._profile.files = files
            fetch(turn)

        with WireClient(self._cluster.at(0)) as client, WireClient(self._cluster.at(0)) as producer:
            while not acquired:
                _produce(producer)
                fetch(0)
            return self._profile.files_of(next_fetch)

    def a_transactions_commit(self) -> Files:
        """Until the coordinator has written that it is complete."""
        with self._coordinator("tx", 1) as client, WireClient(self._cluster.at(0)) as producer:
            init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=_TIMEOUT_MS)
            began = _once_loaded(lambda: client.get(init, 4, InitProducerIdResponse))
            sequence = 0

            def commit(_: int) -> None:
                nonlocal sequence
                files, self._profile.files = self._profile.files, None
                add = AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id="tx",
                    v3_and_below_producer_id=began.producer_id,
                    v3_and_below_producer_epoch=began.producer_epoch,
                    v3_and_below_topics=[AddPartitionsToTxnTopic(name=_TOPIC, partitions=[0])],
                )
                added = client.get(add, 3, AddPartitionsToTxnResponse)
                while added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code:
                    # The transaction before is not complete yet.
                    added = client.get(add, 3, AddPartitionsToTxnResponse)
                batch = build_batch(
                    [(1, b"key", b"value")],
                    producer_id=began.producer_id,
                    producer_epoch=began.producer_epoch,
                    base_sequence=sequence,
                    transactional=True,
                )
                _produce(producer, batch, "tx")
                sequence += 1
                self._profile.files = files
                end = EndTxnRequest(
                    transactional_id="tx",
                    producer_id=began.producer_id,
                    producer_epoch=began.producer_epoch,
                    committed=True,
                )
                ended = client.get(end, 3, EndTxnResponse)
                assert ended.error_code == 0, ended

            leader = self._cluster.nodes[0].broker
            assert leader is not None
            partition = next(each for each in leader.replicas if each.topic_partition.topic == _TOPIC)
            return self._profile.files_of(
                commit, lambda: partition.log.last_stable_offset == partition.log.log_end_offset
            )

    def _create(self, client: WireClient, name: str, *, first: int = 0) -> None:
        """Create a topic of one partition, whose leader is node `first`."""
        count = len(self._cluster.nodes)
        brokers = [(first + index) % count for index in range(count)]
        assigned = CreatableReplicaAssignment(partition_index=0, broker_ids=brokers)
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[assigned])
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        created = client.get(request, 7, CreateTopicsResponse)
        # A broker may not have applied yet that it is there.
        assert created.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS), created

    @contextmanager
    def _coordinator(self, key: str, kind: int) -> Iterator[WireClient]:
        found: list[int] = []

        def is_there() -> bool:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            answer = client.get(request, 4, FindCoordinatorResponse).coordinators[0]
            found[:] = [answer.node_id] if answer.error_code == 0 else []
            return bool(found)

        with WireClient(self._cluster.at(0)) as client:
            for name in _TOPICS_OF_COORDINATORS[kind]:
                if name not in self._cluster.nodes[0].image.topics.by_name:
                    # It is another node than the leader of what clients read and write.
                    self._create(client, name, first=1)
            wait_until(is_there)
        with WireClient(self._cluster.at(found[0])) as coordinator:
            yield coordinator


WAYS: Final = {
    "a produce request": Ways.a_produce_request,
    "a fetch": Ways.a_fetch,
    "a group heartbeat": Ways.a_group_heartbeat,
    "a share fetch": Ways.a_share_fetch,
    "a transaction's commit": Ways.a_transactions_commit,
    "a topic's creation": Ways.a_topics_creation,
}


class Answer(Protocol):
    error_code: int


A = TypeVar("A", bound=Answer)


def _once_loaded(ask: Callable[[], A]) -> A:
    """The answer of a coordinator, once it has loaded its partition."""
    answer = ask()
    while answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        answer = ask()
    assert answer.error_code == 0, answer
    return answer


def _produce(client: WireClient, batch: bytes | None = None, transactional_id: str | None = None) -> None:
    request = produce_request(
        _TOPIC,
        batch or build_batch([(1, b"key", b"value")]),
        transactional_id=transactional_id,
        timeout_ms=_TIMEOUT_MS,
    )
    answer = client.get(request, 11, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def run(names: Iterable[str], count: int = 3) -> dict[str, Files]:
    profile = _Profile()
    threading.setprofile(profile)  # for threads that start from now on, those of the nodes among them
    try:
        with tempfile.TemporaryDirectory() as directory, _Cluster(directory, count) as cluster:
            ways = Ways(cluster, profile)
            return {name: WAYS[name](ways) for name in names}
    finally:
        threading.setprofile(None)


_LIST: Final = re.compile(r"<!-- files of (.+?) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def lists(page: str) -> dict[str, set[str]]:
    """The files of each way that the page lists."""
    found = {}
    for way, text in _LIST.findall(page):
        rows = re.findall(r"^\| `(.+?)/` \| (.+?) \|$", text, re.MULTILINE)
        found[way] = {f"{room}/{name}.py" for room, names in rows for name in names.split()}
    return found


def written(page: str, files: Mapping[str, set[str]]) -> str:
    """The page with these lists."""

    def rows(way: str) -> Iterator[str]:
        yield f"{len(files[way])} files on three nodes:\n\n| room | files |\n|---|---|\n"
        rooms: dict[str, list[str]] = {}
        for file in sorted(files[way]):
            room, _, name = file.rpartition("/")
            rooms.setdefault(room, []).append(name.removesuffix(".py"))
        for room, names in rooms.items():
            yield f"| `{room}/` | {' '.join(names)} |\n"

    def replaced(match: re.Match[str]) -> str:
        return f"<!-- files of {match[1]} -->\n{''.join(rows(match[1]))}<!-- end -->\n"

    return _LIST.sub(replaced, page)


def main(arguments: list[str]) -> None:
    if "--write" in arguments:
        first, second = run(WAYS), run(WAYS)
        PAGE.write_text(
            written(PAGE.read_text(), {way: first[way].always & second[way].always for way in WAYS})
        )
        return
    names = [each for each in arguments if each != "--alone"]
    for way, files in run(names or WAYS, 1 if "--alone" in arguments else 3).items():
        print(f"{way}: {len(files.always)} files")
        print("".join(f"  {file}\n" for file in sorted(files.always)))


if __name__ == "__main__":
    main(sys.argv[1:])
