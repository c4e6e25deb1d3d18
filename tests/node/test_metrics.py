"""`/metrics` of a live node: requests by phase, errors, topics, groups, transactions, bounds of labels."""

import asyncio
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from tests.support.waiting import wait_until
from tests.support.wire import fetch_request, produce_request

from ottla import LocalNode, blocking
from ottla.node.metrics.slow_calls import SlowCall
from ottla.protocol.headers import request_parts
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.records.builder import build_batch
from ottla.runtime.clock import SystemClock
from ottla.runtime.metrics_text import parse_metrics
from ottla.runtime.pool import ThreadPool
from ottla.testing.local_cluster import send_request

HTTP = {"http.listener": "http://127.0.0.1:0"}


def text_of(node: LocalNode) -> str:
    with urllib.request.urlopen(f"{node.http_url}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


class Scrape:
    """One scrape; `scrape("name", label="value")` is the only sample that fits."""

    def __init__(self, node: LocalNode) -> None:
        self.samples = list(parse_metrics(text_of(node)))

    def all(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        return [
            (sample.labels, sample.value)
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def __call__(self, name: str, **labels: str) -> float:
        found = self.all(name, **labels)
        assert len(found) == 1, (name, labels, found)
        return found[0][1]

    def of_node(self, name: str) -> float:
        """The sample without labels, beside which there may be some with labels."""
        (value,) = [value for labels, value in self.all(name) if not labels]
        return value

    def total(self, name: str, **labels: str) -> float:
        return sum(value for _, value in self.all(name, **labels))


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(HTTP) as node:
        yield node


@pytest.fixture(scope="module")
def traffic(node: LocalNode) -> LocalNode:
    """100 records produced one by one, 60 of them read and committed by a group."""
    with blocking.Producer(node.bootstrap_servers) as producer:
        for _ in range(100):
            producer.send("orders", b"x" * 100)
    commit(node, "readers", "orders", 60)
    return node


def commit(node: LocalNode, group: str, topic: str, offset: int) -> None:
    """Join a group that reads a topic, commit, and leave."""
    settings = {"bootstrap.servers": node.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    with blocking.Consumer({**settings, "auto.offset.reset": "earliest"}) as reader:
        reader.subscribe([topic])
        while not reader.poll(5):
            pass
        reader.commit({(topic, 0): offset})


def produce(node: LocalNode, topic: str) -> ProduceResponse:
    request = produce_request(topic, build_batch([(1, b"key", b"value")]), acks=1, timeout_ms=1_000)
    return send_request(node.port, request, 9, ProduceResponse, timeout_s=30)


class TestText:
    def test_each_family_is_one_block_with_its_help_and_type(self, traffic: LocalNode) -> None:
        seen: list[str] = []
        for line in text_of(traffic).splitlines():
            if line.startswith("# HELP "):
                _, _, name, help = line.split(" ", 3)
                assert help
                seen.append(name)
            elif line.startswith("# TYPE "):
                assert line.split()[2] == seen[-1]
            else:
                assert line.startswith(seen[-1]), line
        assert len(seen) == len(set(seen)) > 80

    def test_no_collector_fails(self, traffic: LocalNode) -> None:
        failures = Scrape(traffic).all("ottla_metrics_collector_errors_total")
        assert len(failures) >= 8
        assert not [labels for labels, count in failures if count]

    def test_scrapes_at_the_same_time_are_all_answered(self, traffic: LocalNode) -> None:
        async def main() -> list[str]:
            return await asyncio.gather(*(asyncio.to_thread(text_of, traffic) for _ in range(6)))

        texts = asyncio.run(main())
        assert len(texts) == 6
        assert all("kafka_server_replicamanager_partitioncount" in text for text in texts)


class TestRequests:
    def test_requests_are_counted_by_api_and_version_with_their_sizes(self, traffic: LocalNode) -> None:
        before = Scrape(traffic)
        produce(traffic, "orders")
        after = Scrape(traffic)
        prefix = "kafka_network_requestmetrics_"
        for name, least in (("requests_total", 1), ("requestbytes_total", 80), ("responsebytes_total", 40)):
            name = prefix + name
            labels = {"request": "Produce", "version": "9"}
            assert after.total(name, **labels) - before.total(name, **labels) >= least
        assert after.total(f"{prefix}requests_total", request="Produce", version="13") >= 100

    def test_the_phases_of_a_request_are_its_time(self, traffic: LocalNode) -> None:
        scrape = Scrape(traffic)
        prefix = "kafka_network_requestmetrics_"
        phases = [
            scrape(f"{prefix}{name}_sum", request="Produce")
            for name in ("requestqueuetimems", "localtimems", "remotetimems", "responsesendtimems")
        ]
        queue, local, _, send = phases
        assert queue >= 0
        assert local > 0
        assert send > 0
        total = scrape(f"{prefix}totaltimems_sum", request="Produce")
        assert total == pytest.approx(sum(phases))
        count = scrape(f"{prefix}totaltimems_count", request="Produce")
        assert count == scrape.total(f"{prefix}requests_total", request="Produce")
        p50 = scrape(f"{prefix}totaltimems", request="Produce", quantile="0.5")
        p999 = scrape(f"{prefix}totaltimems", request="Produce", quantile="0.999")
        assert 0 < p50 <= p999 <= 60_000

    def test_a_request_behind_others_waits_in_the_queue(self, traffic: LocalNode) -> None:
        name = "kafka_network_requestmetrics_requestqueuetimems_sum"
        before = Scrape(traffic)(name, request="Metadata")
        frame = b"".join(map(bytes, request_parts(12, 1, "test", MetadataRequest(topics=[]))))
        with socket.create_connection(("127.0.0.1", traffic.port)) as client:
            client.sendall(frame * 20)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65_536):
                pass
        assert Scrape(traffic)(name, request="Metadata") > before

    def test_a_fetch_that_waits_does_so_in_the_remote_phase(self, traffic: LocalNode) -> None:
        name = "kafka_network_requestmetrics_remotetimems_sum"
        scrape = Scrape(traffic)
        before = scrape.total(name, request="FetchConsumer")
        end = int(scrape("kafka_topic_partition_current_offset", topic="orders", partition="0"))
        request = fetch_request(
            "orders", end, partition_max_bytes=1_000, max_wait_ms=300, min_bytes=1, max_bytes=1_000_000
        )
        send_request(traffic.port, request, 11, FetchResponse, timeout_s=30)
        after = Scrape(traffic)
        assert after(name, request="FetchConsumer") - before >= 290
        assert after(name, request="Fetch") >= after(name, request="FetchConsumer")

    def test_unclean_elections_are_counted_from_none_on(self, traffic: LocalNode) -> None:
        assert Scrape(traffic)("kafka_controller_controllerstats_uncleanleaderelections_total") == 0

    def test_errors_are_counted_wherever_the_response_has_them(self, traffic: LocalNode) -> None:
        assert produce(traffic, "no-such-topic").responses[0].partition_responses[0].error_code == 3
        topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
        create = CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
        send_request(traffic.port, create, 7, CreateTopicsResponse, timeout_s=30)
        heartbeat = HeartbeatRequest(group_id="readers", member_id="no-such-member", generation_id=1)
        send_request(traffic.port, heartbeat, 4, HeartbeatResponse, timeout_s=30)
        scrape = Scrape(traffic)
        for request, version, error in (
            ("Produce", None, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("CreateTopics", "7", "TOPIC_ALREADY_EXISTS"),
            ("Heartbeat", "4", "UNKNOWN_MEMBER_ID"),
        ):
            labels = {"request": request, "error": error} | ({} if version is None else {"version": version})
            found = [
                value
                for given, value in scrape.all("kafka_network_requestmetrics_errors_total")
                if labels.items() <= given.items() and given["version"].isdecimal()
            ]
            assert sum(found) >= 1, labels

    def test_the_time_of_throttling_is_counted(self, traffic: LocalNode) -> None:
        name = "kafka_network_requestmetrics_throttletimems_sum"
        assert Scrape(traffic)(name, request="Produce") == 0
        with blocking.Admin(traffic.bootstrap_servers) as admin:
            admin.quotas.alter({"client-id": None}, set={"producer_byte_rate": 10})
            try:
                wait_until(lambda: produce(traffic, "orders").throttle_time_ms > 0, "none was throttled")
            finally:
                admin.quotas.alter({"client-id": None}, remove=["producer_byte_rate"])
        assert Scrape(traffic)(name, request="Produce") > 0


class TestTopicsAndGroups:
    def test_records_and_bytes_of_a_topic_are_counted(self, traffic: LocalNode) -> None:
        scrape = Scrape(traffic)
        prefix = "kafka_server_brokertopicmetrics_"
        assert scrape(f"{prefix}messagesin_total", topic="orders") >= 100
        assert scrape(f"{prefix}bytesin_total", topic="orders") >= 100 * 100
        assert scrape(f"{prefix}bytesout_total", topic="orders") >= 60 * 100
        for name in ("messagesin_total", "bytesin_total", "bytesout_total"):
            by_topic = sum(value for labels, value in scrape.all(prefix + name) if labels)
            assert scrape.of_node(prefix + name) == by_topic
        size = scrape("kafka_log_log_size", topic="orders", partition="0")
        assert size == scrape(f"{prefix}bytesin_total", topic="orders")

    def test_a_deleted_topic_stays_in_the_sum_of_the_node_only(self, traffic: LocalNode) -> None:
        name = "kafka_server_brokertopicmetrics_messagesin_total"
        with blocking.Producer(traffic.bootstrap_servers) as producer:
            producer.send("short-lived", b"x")
        before = Scrape(traffic).of_node(name)
        assert Scrape(traffic)(name, topic="short-lived") == 1
        with blocking.Admin(traffic.bootstrap_servers) as admin:
            admin.topics.delete("short-lived")
        wait_until(lambda: not Scrape(traffic).all(name, topic="short-lived"), "the series is still there")
        assert Scrape(traffic).of_node(name) >= before

    def test_a_group_has_its_state_members_and_lag(self, traffic: LocalNode) -> None:
        scrape = Scrape(traffic)
        labels = {"consumergroup": "readers", "topic": "orders", "partition": "0"}
        end = scrape("kafka_topic_partition_current_offset", topic="orders", partition="0")
        assert scrape("kafka_consumergroup_current_offset", **labels) == 60
        assert scrape("kafka_consumergroup_lag", **labels) == end - 60
        assert scrape("kafka_consumergroup_lag_sum", consumergroup="readers", topic="orders") == end - 60
        assert scrape("kafka_consumergroup_members", consumergroup="readers") == 0
        assert scrape("ottla_groups", protocol="classic", state="Empty") == 1
        assert scrape("kafka_coordinator_group_groupmetadatamanager_numoffsets") == 1

    def test_transactions_are_seen_while_open_and_after_their_end(self, traffic: LocalNode) -> None:
        settings = {"bootstrap.servers": traffic.bootstrap_servers, "transactional.id": "teller"}
        with blocking.Producer(settings) as producer:
            producer.begin_transaction()
            producer.send("orders", b"pending")
            scrape = Scrape(traffic)
            assert scrape("ottla_transactional_ids", state="Ongoing") == 1
            assert scrape("ottla_transaction_oldest_open_seconds") > 0
            labels = {"topic": "orders", "partition": "0"}
            assert scrape("kafka_cluster_partition_laststableoffsetlag", **labels) == 1
            assert scrape("kafka_server_replicamanager_produceridcount") >= 1
            producer.abort_transaction()
        wait_until(
            lambda: Scrape(traffic)("ottla_transactions_ended_total", result="abort") == 1,
            "the abort was not counted",
        )
        ended = Scrape(traffic)
        assert ended("ottla_transaction_open_seconds_count") == 1
        assert 0 <= ended("ottla_transaction_open_seconds_sum") < 600


class TestNode:
    def test_a_node_alone_leads_everything_and_lacks_nothing(self, traffic: LocalNode) -> None:
        scrape = Scrape(traffic)
        prefix = "kafka_server_replicamanager_"
        assert scrape(f"{prefix}partitioncount") == scrape(f"{prefix}leadercount") > 0
        for name in ("underreplicatedpartitions", "underminisrpartitioncount", "offlinereplicacount"):
            assert scrape(prefix + name) == 0
        assert scrape("kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert scrape("kafka_controller_kafkacontroller_offlinepartitionscount") == 0
        assert scrape("kafka_server_raftmetrics_current_state", current_state="leader") == 1
        assert scrape("kafka_server_kafkaserver_brokerstate") == 3

    def test_the_process_and_its_tasks_are_seen(self, traffic: LocalNode) -> None:
        scrape = Scrape(traffic)
        assert scrape("process_resident_memory_bytes") > 10_000_000
        assert scrape("process_open_fds") > 3
        assert scrape("ottla_pool_threads") > 0
        assert scrape("ottla_background_tasks", state="running") > 10
        assert scrape("ottla_background_task_down", task="retention") == 0
        assert scrape("ottla_background_task_errors_total", task="retention") == 0

    def test_connections_and_faults_of_clients_are_counted(self, traffic: LocalNode) -> None:
        name = "ottla_network_closed_for_fault_total"
        before = Scrape(traffic)(name)
        with socket.create_connection(("127.0.0.1", traffic.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(100) == b""
        scrape = Scrape(traffic)
        assert scrape(name) == before + 1
        listener = {"listener": "PLAINTEXT"}
        assert scrape("kafka_server_socket_server_metrics_connection_creation_total", **listener) > 3
        assert scrape("kafka_server_socket_server_metrics_incoming_byte_total", **listener) > 10_000


def test_labels_are_bounded_and_the_rest_is_summed_up() -> None:
    bounds = {"metrics.max.topics": "2", "metrics.max.partitions": "3", "metrics.max.group.partitions": "2"}
    with LocalNode({**HTTP, **bounds}) as node:
        with blocking.Producer(node.bootstrap_servers) as producer:
            for topic in range(5):
                producer.send(f"topic-{topic}", b"x")
        for group in range(4):
            commit(node, f"group-{group}", "topic-0", 1)
        scrape = Scrape(node)
        name = "kafka_server_brokertopicmetrics_messagesin_total"
        topics = [labels["topic"] for labels, _ in scrape.all(name) if labels]
        assert len(topics) == 3
        assert topics[-1] == "_other"
        assert scrape.of_node(name) == sum(value for labels, value in scrape.all(name) if labels)
        sizes = scrape.all("kafka_log_log_size")
        assert len(sizes) == 4
        assert sizes[-1][0] == {"topic": "_other", "partition": "_other"}
        assert len(scrape.all("kafka_log_log_logendoffset")) == 3
        assert scrape("kafka_server_replicamanager_partitioncount") == 5 + 4
        assert len(scrape.all("kafka_consumergroup_current_offset")) == 2
        assert scrape("ottla_groups_without_series") == 3
        assert scrape("kafka_consumergroup_lag_sum", consumergroup="_other") == 0
        assert scrape.total("ottla_groups") == 4


def test_a_disk_that_hangs_takes_one_thread_and_does_not_hold_a_scrape() -> None:
    hung = threading.Event()
    calls = []

    def ask(path: str) -> int:
        calls.append(path)
        hung.wait(60)
        return 7

    async def main() -> list[int | None]:
        pool = ThreadPool(2)
        call = SlowCall(pool, SystemClock(), seconds=0.05)
        answers = [await call.run(ask, "/data") for _ in range(3)]
        hung.set()
        while pool.accepted:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len(calls) == 1
        # A thread of the pool may be late by more than the call may take.
        async with asyncio.timeout(60):
            while (answer := await call.run(ask, "/data")) is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        answers.append(answer)
        pool.close()
        return answers

    assert asyncio.run(main()) == [None, None, None, 7]


def test_without_metrics_requests_are_not_timed_and_the_rest_is_there() -> None:
    with LocalNode({**HTTP, "metrics.enable": "false"}) as node:
        with blocking.Producer(node.bootstrap_servers) as producer:
            producer.send("orders", b"x")
        scrape = Scrape(node)
        assert not scrape.all("kafka_network_requestmetrics_requests_total")
        assert scrape("kafka_server_brokertopicmetrics_messagesin_total", topic="orders") == 1
