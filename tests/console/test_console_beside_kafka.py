"""`ottla console` beside Apache Kafka: the command as users start it, and every page's data."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from ottla.client.blocking import Admin, Consumer, Producer
from ottla.protocol.messages import share_group_heartbeat as share
from ottla.protocol.messages import streams_group_heartbeat as streams
from tests.console.api_client import ApiClient
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def api(apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    directory = tmp_path_factory.mktemp("console")
    (directory / "order.avsc").write_text(
        '{"type":"record","name":"O","fields":[{"name":"id","type":"long"},{"name":"item","type":"string"}]}'
    )
    (directory / "schemas.toml").write_text(
        '[[topic]]\nname = "console-avro"\nvalue = { file = "order.avsc" }\n'
    )
    command = [sys.executable, "-m", "ottla", "console", "-b", apache_kafka.bootstrap]
    command += ["--listen", "http://127.0.0.1:0", "--schemas", str(directory / "schemas.toml")]
    command += ["--data-dir", str(apache_kafka.data_dir)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+)(/\?token=\w+)", line)
        assert found, line
        client = ApiClient(found[1])
        assert client.request("GET", found[2]).status == 302
        yield client
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=120)[1]
        assert process.returncode == 0, rest
        assert "Traceback" not in rest, rest


def test_the_cluster_its_topics_and_their_settings(api: ApiClient, apache_kafka: ApacheKafka) -> None:
    overview: dict[str, Any] = {}

    def is_well() -> bool:
        # A broker that has just begun, or a busy machine, may be behind with one thing or another.
        overview.update(api.get("/api/overview"))
        return (overview["warnings"], overview["problems"], overview["node"]) == ([], [], None)

    wait_until(is_well, f"there is something wrong: {overview}")
    assert overview["quorum"]["leaderId"] == overview["brokers"][0]["id"] == 1
    api.post("/api/topics", {"name": "console-t", "partitions": 2, "configs": {"retention.ms": "86400000"}})
    apache_kafka.settle()
    with Producer(apache_kafka.bootstrap) as producer:
        for n in range(20):
            producer.send("console-t", b'{"n": %d}' % n, key=b"%d" % n)
    found = api.get("/api/topics/console-t")
    assert (found["messages"], found["retentionMs"], found["problems"]) == (20, 86_400_000, [])
    assert found["sizeBytes"] > 0
    settings = {each["name"]: each for each in api.get("/api/topics/console-t/config")["items"]}
    assert (settings["retention.ms"]["source"], settings["retention.ms"]["default"]) == ("TOPIC", "604800000")
    assert settings["retention.ms"]["documentation"]
    assert len(api.get("/api/topics/console-t/messages")["items"]) == 20
    one = api.get("/api/topics/console-t/messages", path="$.n", pathValue="7", **{"from": "beginning"})
    assert [each["key"]["text"] for each in one["items"]] == ["7"]
    with api.events("/api/overview/stream") as events:
        assert next(events)[1]["messagesInPerSecond"] is not None
    for path in ("/api/log-dirs", "/api/brokers/1/config", "/api/transactions", "/api/users", "/api/quotas"):
        api.get(path)
    assert api.request("GET", "/api/tasks").error == "NOT_AVAILABLE"


def test_kafkas_own_files_and_metadata_log_are_shown(api: ApiClient, apache_kafka: ApacheKafka) -> None:
    assert api.get("/api/topics/__cluster_metadata/files")["segments"][0]["baseOffset"] == 0
    found = api.get("/api/topics/__cluster_metadata/messages", **{"from": "beginning"})["items"]
    assert "BootstrapRecord" not in found[0]["value"]["text"]
    assert all(each["value"]["note"] is None for each in found)
    assert api.request("GET", "/api/topics/console-missing/files").error == "NOT_FOUND"


def test_messages_are_encoded_and_decoded_by_a_schema(api: ApiClient, apache_kafka: ApacheKafka) -> None:
    api.post("/api/topics", {"name": "console-avro", "partitions": 1})
    apache_kafka.settle()
    path = "/api/topics/console-avro/messages"
    api.post(path, {"value": {"json": '{"id": 7, "item": "pen"}', "encode": True}})
    api.post(path, {"value": {"text": "not avro at all"}})
    answer = api.send("POST", path, {"value": {"json": '{"id": "x"}', "encode": True}})
    assert answer.error == "BAD_REQUEST"
    broken, right = api.get(path)["items"]
    assert (right["value"]["format"], right["value"]["schema"], right["value"]["size"]) == (
        "avro",
        "order.avsc",
        5,
    )
    assert right["value"]["text"] == '{\n  "id": 7,\n  "item": "pen"\n}'
    assert broken["value"]["format"] == "text"
    assert "not avro of order.avsc" in broken["value"]["note"]


def test_groups_of_every_protocol(api: ApiClient, apache_kafka: ApacheKafka) -> None:
    servers = apache_kafka.bootstrap
    with Admin(servers) as admin:
        admin.topics.create("console-g", partitions=2)
        apache_kafka.settle()
        with Producer(servers) as producer:
            for n in range(10):
                producer.send("console-g", b"%d" % n, partition=n % 2)
        with Consumer(servers, group_id="console-classic", enable_auto_commit=False) as consumer:
            consumer.assign([("console-g", 0)])
            consumer.commit({("console-g", 0): 2})
        admin.groups.coordinator("console-share")
    share_member, streams_member = (urlsafe_b64encode(uuid4().bytes).decode()[:22] for _ in range(2))

    def join() -> bool:
        with WireClient(servers) as wire:
            answer = wire.ask(
                share.ShareGroupHeartbeatRequest(
                    group_id="console-share",
                    member_id=share_member,
                    member_epoch=0,
                    subscribed_topic_names=["console-g"],
                ),
                1,
            )
            assert isinstance(answer, share.ShareGroupHeartbeatResponse)
            if answer.error_code:
                return False
            other = wire.ask(
                streams.StreamsGroupHeartbeatRequest(
                    group_id="console-streams",
                    member_id=streams_member,
                    member_epoch=0,
                    rebalance_timeout_ms=60_000,
                    process_id="p",
                    topology=streams.Topology(
                        epoch=0,
                        subtopologies=[streams.Subtopology(subtopology_id="0", source_topics=["console-g"])],
                    ),
                    active_tasks=[],
                    standby_tasks=[],
                    warmup_tasks=[],
                    client_tags=[],
                ),
                0,
            )
            assert isinstance(other, streams.StreamsGroupHeartbeatResponse)
            return not other.error_code

    wait_until(join, "no group could be joined")
    listed = {each["id"]: each for each in api.get("/api/groups", search="console-")["items"]}
    assert {name: each["type"] for name, each in listed.items()} == {
        "console-classic": "classic",
        "console-share": "share",
        "console-streams": "streams",
    }
    assert listed["console-classic"]["lag"] == 3
    shared = api.get("/api/group", id="console-share")
    assert (shared["type"], shared["members"][0]["id"]) == ("share", share_member)
    assert shared["members"][0]["subscription"] == ["console-g"]
    streaming = api.get("/api/group", id="console-streams")
    assert (streaming["type"], streaming["members"][0]["id"]) == ("streams", streams_member)
    assert set(streaming["members"][0]["tasks"]) == {"active", "standby", "warmup"}
    plan = api.post("/api/group/reset", {"to": "beginning"}, id="console-classic")
    assert [(each["before"], each["after"]) for each in plan["items"]] == [(2, 0)]
    refused = api.post("/api/group/reset", {"to": "beginning", "topics": ["console-g"]}, id="console-share")[
        "refused"
    ]
    assert "with 1 member" in refused


def test_an_open_transaction_is_shown(api: ApiClient, apache_kafka: ApacheKafka) -> None:
    api.post("/api/topics", {"name": "console-x", "partitions": 1})
    apache_kafka.settle()
    with Producer(apache_kafka.bootstrap, transactional_id="console-pay") as producer, producer.transaction():
        producer.send("console-x", b"open")
        (held,) = api.get("/api/transactions/open", topic="console-x")["items"]
        assert held["producers"][0]["transactionalId"] == "console-pay"
    deadline = time.monotonic() + 60
    while api.get("/api/transactions/open", topic="console-x")["items"]:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--listen", "http://0.0.0.0:0"], "use https"),
        (["--listen", "https://127.0.0.1:0"], "--certificate"),
        (["--listen", "nothing"], "expected http://HOST:PORT"),
        (["--login"], "security.protocol=SASL_SSL"),
        (["--schemas", "/none.toml"], "No such file"),
        (["--data-dir", "/none"], "no such directory"),
        (["--pipeline", "/none"], "no such file"),
        (["--schema-registry", "ftp://x"], "expected http"),
    ],
)
def test_wrong_options_are_named(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ottla.cli.main import main

    assert main(["console", *arguments]) == 2
    assert problem in capsys.readouterr().err
