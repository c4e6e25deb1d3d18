"""The console's API on a live node."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from ottla.client.admin.configs import ResourceType
from ottla.client.blocking import Admin, Consumer, Producer, ShareConsumer
from ottla.client.share import ShareRecord
from ottla.protocol.errors import ErrorCode
from ottla.testing.local_node import LocalNode
from tests.console.api_client import ApiClient, Refused
from tests.coordinator.transaction.wire_producer import WireProducer
from tests.support.waiting import wait_until

MANY = 120


def fill(node: LocalNode, topic: str, count: int = MANY) -> None:
    with Producer(node.bootstrap_servers) as producer:
        for n in range(count):
            producer.send_nowait(
                topic,
                json.dumps({"id": n, "user": {"id": n % 7}}).encode(),
                key=b"k%d" % n,
                headers=[("trace", b"t%d" % n)],
                timestamp=1_000_000 + n,
            )


@contextmanager
def topic_of(api: ApiClient, name: str, partitions: int = 2) -> Iterator[str]:
    # The messages of these tests are old: they would be deleted by their age.
    api.post("/api/topics", {"name": name, "partitions": partitions, "configs": {"retention.ms": "-1"}})
    yield name


def test_batches_that_inflate_to_a_lot_are_named_in_a_list_and_shown_alone(
    api: ApiClient, console_node: LocalNode
) -> None:
    with topic_of(api, "inflating", 1) as topic:
        limits = {"compression_type": "zstd", "max_request_size": 40_000_000, "linger_ms": 0}
        with Producer(console_node.bootstrap_servers, **limits) as producer:
            for size in (1, 20_000_000, 2, 20_000_000, 3):
                producer.send(topic, bytes(size))
        for way in ("newest", "beginning"):
            found = api.get(f"/api/topics/{topic}/messages", **{"from": way})
            assert sorted(each["offset"] for each in found["items"]) == [0, 2, 4]
            assert len(found["problems"]) == 2
            assert any("partition 0: offset 1 cannot be listed" in each for each in found["problems"])
            assert found["looked"]["bytes"] < 1_000
        found = api.get(f"/api/topics/{topic}/messages/one", partition=0, offset=3)
        assert found["message"]["value"]["size"] == 20_000_000


class TestOverview:
    def test_it_shows_brokers_the_quorum_and_that_nothing_is_wrong(self, api: ApiClient) -> None:
        found = api.get("/api/overview")
        (broker,) = found["brokers"]
        assert broker["isController"]
        assert broker["totalBytes"] > broker["usableBytes"] > 0
        assert found["quorum"]["voters"][0]["lag"] == 0
        assert found["warnings"] == []
        assert found["problems"] == []
        assert found["node"]["tasks"]["failed"] == 0
        assert {each["name"] for each in found["features"]} >= {"metadata.version", "kraft.version"}

    @pytest.mark.slow
    def test_it_says_how_long_the_node_is_up_not_the_console(self) -> None:
        with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
            assert node.http_url is not None
            started = time.monotonic()
            wait_until(lambda: time.monotonic() - started > 2, "seconds do not pass")
            asked = time.monotonic()
            uptime_ms = ApiClient(node.http_url).get("/api/overview")["node"]["uptimeMs"]
            assert uptime_ms > (time.monotonic() - asked) * 1_000

    @pytest.mark.slow
    def test_charts_get_a_sample_soon_and_the_history_at_once(
        self, api: ApiClient, console_node: LocalNode
    ) -> None:
        with topic_of(api, "charted") as topic, api.events("/api/overview/stream") as events:
            fill(console_node, topic)
            name, first = next(events)
            assert name == "sample"
            assert first["roundTripMs"] > 0
            fill(console_node, topic)
            # One may be taken before the messages are there.
            later = next(sample for _, sample in events if sample["messagesInPerSecond"])
            assert later["bytesInPerSecond"] > 0
            assert later["requestLatencyMs"]["mean"] > 0
            assert later["requestLatencyMs"]["p99"] > 0
        with api.events("/api/overview/stream") as again:
            assert next(again)[1]["time"] == first["time"]

    def test_the_tasks_of_the_node_are_listed(self, api: ApiClient) -> None:
        names = {each["name"]: each["state"] for each in api.get("/api/tasks")["items"]}
        assert names["broker heartbeats"] == "running"


class TestTopics:
    def test_a_topic_is_created_described_changed_and_deleted(
        self, api: ApiClient, console_node: LocalNode
    ) -> None:
        assert api.post(
            "/api/topics", {"name": "life", "partitions": 1, "configs": {"retention.ms": "60000"}}
        )
        fill(console_node, "life", 10)
        (listed,) = api.get("/api/topics", search="LIF")["items"]
        assert (listed["name"], listed["messages"], listed["partitions"]) == ("life", 10, 1)
        assert listed["sizeBytes"] > 0
        found = api.get("/api/topics/life")
        assert (found["messages"], found["retentionMs"], found["cleanupPolicy"]) == (10, 60_000, "delete")
        assert found["partitions"][0]["endOffset"] == found["partitions"][0]["lastStableOffset"] == 10
        assert "READ" in found["operations"]
        configs = {each["name"]: each for each in api.get("/api/topics/life/config")["items"]}
        assert configs["retention.ms"]["source"] == "TOPIC"
        assert configs["retention.ms"]["default"] == "604800000"
        api.post(
            "/api/topics/life/config", {"set": {"max.message.bytes": "2000"}, "delete": ["retention.ms"]}
        )
        configs = {each["name"]: each for each in api.get("/api/topics/life/config")["items"]}
        assert (configs["retention.ms"]["source"], configs["max.message.bytes"]["value"]) == (
            "DEFAULT",
            "2000",
        )
        api.post("/api/topics/life/partitions", {"total": 3})
        assert api.get("/api/topics/life")["partitionCount"] == 3
        assert api.post("/api/topics/life/delete-records", {"offsets": {"0": 4}})["offsets"] == {"0": 4}
        assert api.post("/api/topics/life/elect-leaders")["problems"] == []
        api.delete("/api/topics/life")
        assert api.request("GET", "/api/topics/life").error == "UNKNOWN_TOPIC_OR_PARTITION"

    def test_pages_sorts_and_searches(self, api: ApiClient) -> None:
        for name, partitions in (("page-a", 3), ("page-b", 1), ("page-c", 2)):
            api.post("/api/topics", {"name": name, "partitions": partitions})

        def names(**query: object) -> list[str]:
            found = api.get("/api/topics", search="page-", **query)
            assert found["total"] == 3
            return [each["name"] for each in found["items"]]

        assert names(order="desc") == ["page-c", "page-b", "page-a"]
        assert names(sort="partitions") == ["page-b", "page-c", "page-a"]
        assert names(page=2, pageSize=2) == ["page-c"]
        assert len(names(sort="messages")) == len(names(sort="size")) == 3

    @pytest.mark.parametrize("name", ["a.b", "a_b-c", "." * 3, "x" * 249, "-", "messages"])
    def test_names_with_every_legal_character(self, api: ApiClient, name: str) -> None:
        api.post("/api/topics", {"name": name, "partitions": 1})
        assert api.get(f"/api/topics/{name}")["name"] == name
        assert api.get(f"/api/topics/{name}/messages")["items"] == []
        assert api.get(f"/api/topics/{name}/files")["topic"] == name

    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "code"),
        [
            ("POST", "/api/topics", {"name": "../x"}, 400, "INVALID_TOPIC_EXCEPTION"),
            ("POST", "/api/topics", {"name": 5}, 400, "BAD_REQUEST"),
            ("POST", "/api/topics", [], 400, "BAD_REQUEST"),
            ("POST", "/api/topics/none/partitions", {"total": 2}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("GET", "/api/topics?page=0", None, 400, "BAD_REQUEST"),
            ("GET", "/api/topics?pageSize=501", None, 400, "BAD_REQUEST"),
            ("GET", "/api/topics?sort=nothing", None, 400, "BAD_REQUEST"),
            ("GET", "/api/topics/none/messages", None, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("GET", "/api/topics/..%2f..%2fetc/files", None, 400, "BAD_REQUEST"),
            ("GET", "/api/group?id=..", None, 404, "GROUP_ID_NOT_FOUND"),
            ("GET", "/api/group", None, 400, "BAD_REQUEST"),
            ("GET", "/api/nothing/here", None, 404, "NOT_FOUND"),
            ("GET", "/api/brokers/x/config", None, 400, "BAD_REQUEST"),
        ],
    )
    def test_wrong_requests_are_answered_with_the_reason(
        self, api: ApiClient, method: str, path: str, body: object, status: int, code: str
    ) -> None:
        answer = api.send(method, path, body)
        assert (answer.status, answer.error) == (status, code), answer


class TestMessages:
    @pytest.fixture(scope="class")
    @classmethod
    def topic(cls, console_node: LocalNode) -> str:
        assert console_node.http_url is not None
        with topic_of(ApiClient(console_node.http_url), "orders"):
            fill(console_node, "orders")
        return "orders"

    def read(self, api: ApiClient, topic: str, **query: object) -> Any:
        return api.get(f"/api/topics/{topic}/messages", **query)

    def ids(self, found: Any) -> list[int]:
        return [json.loads(each["value"]["text"])["id"] for each in found["items"]]

    def test_the_newest_come_first_and_pages_go_back(self, api: ApiClient, topic: str) -> None:
        found = self.read(api, topic, limit=50)
        seen = self.ids(found)
        assert seen == list(range(MANY - 1, MANY - 51, -1))
        while found["next"] is not None:
            found = self.read(api, topic, limit=50, cursor=found["next"])
            seen += self.ids(found)
        assert seen == list(range(MANY - 1, -1, -1))
        assert (found["looked"]["reason"], found["remaining"]) == ("end", 0)

    def test_from_the_beginning_an_offset_and_a_time(self, api: ApiClient, topic: str) -> None:
        assert self.ids(self.read(api, topic, limit=10, **{"from": "beginning"})) == list(range(10))
        at = self.read(api, topic, partitions="1", limit=3, offset=5, **{"from": "offset"})["items"]
        assert [(each["partition"], each["offset"]) for each in at] == [(1, 5), (1, 6), (1, 7)]
        timed = self.read(api, topic, time=1_000_040, to=1_000_045, limit=100, **{"from": "time"})
        assert self.ids(timed) == [40, 41, 42, 43, 44]

    @pytest.mark.parametrize(
        ("query", "ids"),
        [
            ({"key": "K11"}, [11, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119]),
            ({"value": '"id": 99'}, [99]),
            ({"header": "trace=T7"}, [7, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79]),
            ({"path": "$.user.id", "pathValue": "3", "key": "k1"}, [10, 17, 101, 108, 115]),
            ({"path": "$.nothing"}, []),
        ],
    )
    def test_searches(self, api: ApiClient, topic: str, query: dict[str, str], ids: list[int]) -> None:
        found = self.read(api, topic, limit=100, **{"from": "beginning"}, **query)
        assert sorted(self.ids(found)) == ids
        assert (found["looked"]["messages"], found["looked"]["reason"]) == (MANY, "end")

    def test_a_search_shows_its_budget_and_goes_on_from_there(self, api: ApiClient, topic: str) -> None:
        first = self.read(api, topic, value='"id": 119', scan=50, **{"from": "beginning"})
        assert (first["items"], first["looked"]["messages"], first["looked"]["reason"]) == ([], 50, "scan")
        assert first["remaining"] == MANY - 50
        rest = self.read(api, topic, value='"id": 119', cursor=first["next"])
        assert self.ids(rest) == [119]

    def test_a_cursor_of_many_partitions_fits_into_an_address(
        self, api: ApiClient, console_node: LocalNode
    ) -> None:
        with topic_of(api, "broad", 200) as topic:
            with Producer(console_node.bootstrap_servers) as producer:
                for partition in range(200):
                    producer.send_nowait(topic, b"%d" % partition, partition=partition)
            found: list[str] = []
            cursor: dict[str, str] = {}
            while True:
                answer = api.get(f"/api/topics/{topic}/messages", limit=60, **{"from": "beginning"}, **cursor)
                found += [each["value"]["text"] for each in answer["items"]]
                if answer["next"] is None:
                    break
                assert len(answer["next"]) < 2_100
                cursor = {"cursor": answer["next"]}
            assert sorted(found, key=int) == [str(number) for number in range(200)]
            forgotten = api.request("GET", f"/api/topics/{topic}/messages", cursor="~0123")
            assert (forgotten.status, forgotten.error) == (400, "BAD_REQUEST")

    @pytest.mark.slow
    def test_a_list_is_a_document_of_bounded_size(self, api: ApiClient, console_node: LocalNode) -> None:
        with topic_of(api, "heavy", 1) as topic:
            headers = [(f"{number} {'n' * 300}", b"v" * 2_000) for number in range(60)]
            with Producer(console_node.bootstrap_servers) as producer:
                for number in range(300):
                    producer.send_nowait(topic, b"%d" % number + b"x" * 20_000, headers=headers)
            found: list[int] = []
            cursor: dict[str, str] = {}
            while True:
                answer = api.request(
                    "GET", f"/api/topics/{topic}/messages", limit=500, **{"from": "beginning"}, **cursor
                )
                assert len(answer.body) < 6_000_000
                found += [each["offset"] for each in answer.document["items"]]
                if answer.document["next"] is None:
                    break
                cursor = {"cursor": answer.document["next"]}
            assert found == list(range(300))

    def test_a_search_streams_what_it_finds(self, api: ApiClient, topic: str) -> None:
        query = {"value": '"id": 5', "from": "beginning", "limit": 3}
        with api.events(f"/api/topics/{topic}/messages/stream", **query) as events:
            found = list(events)
        assert [name for name, _ in found if name == "message"] == ["message"] * 3
        assert (found[-1][0], found[-1][1]["reason"], found[-1][1]["matched"]) == ("end", "limit", 3)

    @pytest.mark.slow
    def test_the_live_tail_shows_what_arrives(self, api: ApiClient, console_node: LocalNode) -> None:
        with topic_of(api, "tailed", 1) as topic:
            fill(console_node, topic, 5)
            with api.events(f"/api/topics/{topic}/messages/stream", key="k", **{"from": "live"}) as events:
                assert next(events)[0] == "progress"  # it reads from here on
                fill(console_node, topic, 200)
                shown, dropped = [], 0
                for name, document in events:
                    if name == "message":
                        shown.append(document["offset"])
                    else:
                        dropped = document["dropped"]
                        if document["messages"] == 200:
                            break
            assert shown[0] == 5
            assert len(shown) + dropped == 200
            assert dropped > 0  # 50 messages a second are for eyes, more is not

    def test_one_message_and_downloads(self, api: ApiClient, topic: str) -> None:
        path = f"/api/topics/{topic}/messages"
        one = api.get(f"{path}/one", partition=0, offset=3)["message"]
        assert (one["offset"], one["headers"][0]["name"]) == (3, "trace")
        for part, wanted in (("value", "value"), ("key", "key")):
            answer = api.request("GET", f"{path}/download", partition=0, offset=3, part=part)
            assert answer.headers["content-disposition"].startswith("attachment")
            assert answer.headers["content-type"] == "application/octet-stream"
            assert len(answer.body) == one[wanted]["size"]
        header = api.request("GET", f"{path}/download", partition=0, offset=3, part="header", index=0)
        assert header.body == one["headers"][0]["value"]["text"].encode()
        assert api.request("GET", f"{path}/one", partition=0, offset=10**9).error == "NOT_FOUND"
        assert api.request("GET", f"{path}/one", partition=77, offset=0).status == 404
        lines = api.request("GET", f"{path}/export", limit=1000, key="k11", **{"from": "beginning"}).body
        assert len([json.loads(line) for line in lines.splitlines()]) == 11

    def test_a_message_is_produced_as_it_was_given(self, api: ApiClient) -> None:
        with topic_of(api, "produced", 1) as topic:
            path = f"/api/topics/{topic}/messages"
            binary = base64.b64encode(b"\0\xff").decode()
            sent = api.post(
                path,
                {
                    "key": {"base64": binary},
                    "value": {"json": '{"a": 1}'},
                    "headers": [{"name": "h", "value": {"text": "<b>"}}, {"name": "n", "value": None}],
                    "timestamp": 77,
                },
            )
            assert sent == {"partition": 0, "offset": 0, "timestamp": 77}
            api.post(path, {"key": {"text": "k"}, "value": None})
            first = api.get(f"{path}/one", partition=0, offset=0)["message"]
            assert (first["key"]["format"], first["value"]["format"], first["timestamp"]) == (
                "hex",
                "json",
                77,
            )
            assert first["headers"][1]["value"] is None
            tombstone = api.get(f"{path}/one", partition=0, offset=1)["message"]
            assert tombstone["value"] is None
            assert api.send("POST", path, {"value": {"base64": "?"}}).error == "BAD_REQUEST"
            assert api.send("POST", path, {"value": {"text": "x"}, "partition": 9}).status in (400, 404, 503)

    def test_hostile_messages_are_plain_data(self, api: ApiClient) -> None:
        hostile = '<img src=x onerror="alert(1)">\u2028</script>'
        with topic_of(api, "hostile", 1) as topic:
            api.post(
                f"/api/topics/{topic}/messages",
                {"value": {"text": hostile}, "headers": [{"name": hostile, "value": {"text": hostile}}]},
            )
            answer = api.request("GET", f"/api/topics/{topic}/messages")
            assert answer.headers["content-type"] == "application/json; charset=utf-8"
            assert answer.headers["x-content-type-options"] == "nosniff"
            (found,) = answer.document["items"]
            assert found["value"]["text"] == found["headers"][0]["name"] == hostile

    def test_ten_megabytes_are_cut_and_can_be_downloaded(
        self, api: ApiClient, console_node: LocalNode
    ) -> None:
        large = b"x" * 10_000_000
        api.post(
            "/api/topics", {"name": "large", "partitions": 1, "configs": {"max.message.bytes": "20000000"}}
        )
        with Producer(console_node.bootstrap_servers, max_request_size=20_000_000) as producer:
            for _ in range(4):
                producer.send("large", large)
        answer = api.request("GET", "/api/topics/large/messages")
        assert len(answer.body) < 100_000
        found = answer.document["items"]
        assert [(each["value"]["size"], each["value"]["truncated"]) for each in found] == [
            (10_000_000, True)
        ] * 4
        one = api.get("/api/topics/large/messages/one", partition=0, offset=2)["message"]
        assert 16_384 < len(one["value"]["text"]) <= 1024 * 1024
        assert api.request("GET", "/api/topics/large/messages/download", partition=0, offset=2).body == large

    def test_internal_topics_and_the_metadata_log_are_decoded(
        self, api: ApiClient, console_node: LocalNode
    ) -> None:
        with topic_of(api, "committed") as topic:
            fill(console_node, topic, 4)
        with Consumer(
            console_node.bootstrap_servers, group_id="internal-reader", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            read = 0
            while read < 4:
                read += len(consumer.poll(timeout_ms=1_000))
            consumer.commit()
        found = api.get("/api/topics/__consumer_offsets/messages", limit=500)["items"]
        schemas = {each["key"]["schema"] for each in found if each["key"]}
        assert "OffsetCommitKey" in schemas
        assert {each["value"]["format"] for each in found if each["value"]} == {"internal"}
        records = api.get(
            "/api/topics/__cluster_metadata/messages", limit=500, path="$.type", pathValue="TopicRecord"
        )["items"]
        assert topic in {json.loads(each["value"]["text"])["data"]["name"] for each in records}
        assert (
            api.send("POST", "/api/topics/__cluster_metadata/messages", {"value": {"text": "x"}}).status
            == 404
        )

    def test_the_metadata_log_hides_the_credentials_of_users(self, api: ApiClient) -> None:
        api.post("/api/users", {"name": "hidden", "password": "very secret"})
        query = {"path": "$.type", "pathValue": "UserScramCredentialRecord", "scan": 100_000}
        found = api.get("/api/topics/__cluster_metadata/messages", **query)["items"]
        assert json.loads(found[0]["value"]["text"])["data"]["storedKey"] == "(hidden)"
        for format in ("hex", "text"):
            answer = api.request("GET", "/api/topics/__cluster_metadata/messages", valueFormat=format)
            assert answer.error == "BAD_REQUEST"
        shown: list[str] = []
        after: int | None = 0
        while after is not None:
            rows = api.get(
                "/api/topics/__cluster_metadata/files/rows",
                name="00000000000000000000.log",
                records="true",
                limit=1000,
                after=after,
            )
            decoded = [str(each["data"].get("decoded")) for each in rows["rows"]]
            shown += [each for each in decoded if "UserScramCredentialRecord" in each]
            after = rows["next"]
        assert shown
        assert all(json.loads(each)["value"]["data"]["storedKey"] == "(hidden)" for each in shown)


class TestGroups:
    def commit(self, node: LocalNode, group: str, topic: str, offsets: dict[int, int]) -> None:
        with Consumer(node.bootstrap_servers, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign([(topic, partition) for partition in offsets])
            consumer.commit({(topic, partition): offset for partition, offset in offsets.items()})

    def test_lag_resets_and_deletion(self, api: ApiClient, console_node: LocalNode) -> None:
        group = "billing/../%2f é"
        with topic_of(api, "lagging", 2) as topic:
            fill(console_node, topic, 100)
        ends = {
            each["partition"]: each["endOffset"] for each in api.get(f"/api/topics/{topic}")["partitions"]
        }
        self.commit(console_node, group, topic, {0: 10, 1: 20})
        (listed,) = api.get("/api/groups", search="billing/")["items"]
        assert (listed["id"], listed["lag"], listed["topics"], listed["state"]) == (group, 70, 1, "Empty")
        found = api.get("/api/group", id=group)
        assert (found["lag"], found["members"], found["coordinator"]) == (70, [], 1)
        assert [each["lag"] for each in found["partitions"]] == [ends[0] - 10, ends[1] - 20]
        (reader,) = [each for each in api.get(f"/api/topics/{topic}/groups")["items"] if each["id"] == group]
        assert reader["lag"] == 70

        plan = api.post("/api/group/reset", {"to": "shift", "shift": -15, "dryRun": True}, id=group)
        assert [(each["before"], each["after"]) for each in plan["items"]] == [(10, 0), (20, 5)]
        assert (plan["applied"], plan["lagBefore"], plan["lagAfter"], plan["refused"]) == (
            False,
            70,
            95,
            None,
        )
        assert api.get("/api/group", id=group)["lag"] == 70  # nothing was changed
        api.post(
            "/api/group/reset", {"to": "end", "topics": [topic], "partitions": [1], "dryRun": False}, id=group
        )
        assert [each["committed"] for each in api.get("/api/group", id=group)["partitions"]] == [10, ends[1]]
        api.post("/api/group/reset", {"to": "time", "time": 1_000_050, "dryRun": False}, id=group)
        assert api.get("/api/group", id=group)["lag"] == 50
        api.post(
            "/api/group/reset", {"to": "offsets", "offsets": {topic: {"0": 3}}, "dryRun": False}, id=group
        )
        assert api.get("/api/group", id=group)["partitions"][0]["committed"] == 3
        assert api.send("POST", "/api/group/reset", {"to": "nowhere"}, id=group).error == "BAD_REQUEST"
        api.post("/api/group/delete-offsets", {"topic": topic, "partitions": [0]}, id=group)
        assert [each["partition"] for each in api.get("/api/group", id=group)["partitions"]] == [1]
        api.delete("/api/group", id=group)
        assert api.request("GET", "/api/group", id=group).error == "GROUP_ID_NOT_FOUND"

    def test_the_lag_of_a_share_group_is_what_it_has_not_done(
        self, api: ApiClient, console_node: LocalNode
    ) -> None:
        servers = console_node.bootstrap_servers
        with topic_of(api, "shared", partitions=1) as topic, Admin(servers) as admin:
            fill(console_node, topic, 10)
            admin.configs.alter(ResourceType.GROUP, "sharers", set={"share.auto.offset.reset": "earliest"})
            with ShareConsumer[bytes, bytes](
                servers, group_id="sharers", share_acknowledgement_mode="explicit"
            ) as consumer:
                consumer.subscribe(topic)
                held: list[ShareRecord[bytes, bytes]] = []
                while len(held) < 10:
                    held += consumer.poll()
                consumer.accept(*held[1:5])
                assert not any(consumer.commit().values())
                found = api.get("/api/group", id="sharers")
                queue = api.get("/api/group/records", id="sharers")
                rows = [(each["first"], each["last"], each["state"]) for each in queue["records"]]
                assert rows == [(0, 0, "held"), (5, 9, "held")]
                assert (queue["held"], queue["waiting"], queue["dead"]) == (6, 0, 0)
                assert (queue["deadLetters"], queue["problems"]) == (None, [])
                last = {**queue["records"][1], "first": 9}
                for changed in (1, 0):
                    body = {"action": "skip", "records": [last]}
                    done = api.post("/api/group/records", body, id="sharers")
                    assert done == {"changed": changed, "problems": []}
                for body in ({"action": "keep", "records": [last]}, {"action": "skip", "records": []}):
                    assert api.send("POST", "/api/group/records", body, id="sharers").status == 400
        (partition,) = found["partitions"]
        assert (found["lag"], partition["committed"], partition["end"]) == (6, 0, 10)
        assert (partition["done"], partition["memberId"]) == (4, None)
        plan = api.post("/api/group/reset", {"to": "offset", "offset": 7}, id="sharers")
        assert [(each["before"], each["lagBefore"], each["lagAfter"]) for each in plan["items"]] == [
            (0, 5, 3)
        ]
        done = api.post("/api/group/reset", {"to": "offset", "offset": 7, "dryRun": False}, id="sharers")
        assert (done["applied"], done["items"][0]["error"]) == (True, None)
        (partition,) = api.get("/api/group", id="sharers")["partitions"]
        assert (partition["committed"], partition["done"], partition["lag"]) == (7, 0, 3)
        refused = api.send(
            "POST", "/api/group/delete-offsets", {"topic": topic, "partitions": [0]}, id="sharers"
        )
        assert refused.error == "BAD_REQUEST"
        gone = api.post("/api/group/delete-offsets", {"topic": topic, "partitions": None}, id="sharers")
        assert gone == {"problems": []}
        assert api.get("/api/group", id="sharers")["partitions"] == []

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_a_group_with_members_is_shown_and_not_reset(
        self, api: ApiClient, console_node: LocalNode, protocol: str
    ) -> None:
        with topic_of(api, f"members-{protocol}", 2) as topic:
            fill(console_node, topic, 10)
        with Consumer(
            console_node.bootstrap_servers,
            group_id=f"group-{protocol}",
            group_protocol=protocol,
            client_id="app",
            auto_offset_reset="earliest",
        ) as consumer:
            consumer.subscribe([topic])
            until(lambda: len(consumer.poll(timeout_ms=200) or consumer.assignment()) >= 2)
            consumer.commit()

            def describe() -> Any:
                return api.get("/api/group", id=f"group-{protocol}")

            # A member of the new protocol says with its next heartbeat that it has its partitions.
            until(lambda: describe()["state"] == "Stable")
            found = describe()
            (member,) = found["members"]
            assert (found["type"], member["clientId"]) == (protocol, "app")
            assert [each["partition"] for each in member["partitions"]] == [0, 1]
            assert {each["memberId"] for each in found["partitions"]} == {member["id"]}
            plan = api.post("/api/group/reset", {"to": "beginning"}, id=f"group-{protocol}")
            assert "1 member (app at 127.0.0.1); stop it first" in plan["refused"]
            answer = api.send(
                "POST", "/api/group/reset", {"to": "beginning", "dryRun": False}, id=f"group-{protocol}"
            )
            assert (answer.status, answer.error) == (409, "NON_EMPTY_GROUP")

    @pytest.mark.slow
    def test_a_member_is_removed_and_comes_back_as_another(
        self, api: ApiClient, console_node: LocalNode
    ) -> None:
        with topic_of(api, "removed-from", 1) as topic:
            fill(console_node, topic, 1)
        with Consumer(
            console_node.bootstrap_servers, group_id="removing", group_protocol="classic"
        ) as consumer:
            consumer.subscribe([topic])
            until(lambda: len(consumer.poll(timeout_ms=200) or consumer.assignment()) >= 1)
            (member,) = api.get("/api/group", id="removing")["members"]
            body = {"members": [member["id"]]}
            assert api.post("/api/group/remove-members", body, id="removing") == {"problems": []}

            def is_another() -> bool:
                consumer.poll(timeout_ms=200)
                return {each["id"] for each in api.get("/api/group", id="removing")["members"]} - {
                    member["id"]
                } != set()

            until(is_another)
            assert api.post("/api/group/remove-members", body, id="removing")["problems"] != []

    def test_lag_is_recorded_from_the_first_look_on(self, api: ApiClient, console_node: LocalNode) -> None:
        with topic_of(api, "recorded", 1) as topic:
            fill(console_node, topic, 30)
        self.commit(console_node, "recorder", topic, {0: 10})
        with api.events("/api/group/stream", id="recorder") as events:
            name, point = next(events)
        assert (name, point["lag"], point["committed"], point["end"]) == ("lag", 20, 10, 30)
        history = api.get("/api/group/lag", id="recorder")
        assert history["points"][0] == point
        # On a busy machine there may be more of them by now.
        assert list(history["topics"]) == [topic]
        assert history["topics"][topic][0] == [point["time"], 20]


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, "it was not so")


class TestTransactions:
    def test_a_committed_transaction_is_open_no_longer(self, api: ApiClient, console_node: LocalNode) -> None:
        with topic_of(api, "settled", 1) as topic:
            pass
        with Producer(console_node.bootstrap_servers, transactional_id="pay-3") as producer:
            with producer.transaction():
                producer.send(topic, b"one")
                assert api.get("/api/transaction", id="pay-3")["durationMs"] >= 0
            until(lambda: api.get("/api/transaction", id="pay-3")["state"] == "CompleteCommit")
            (listed,) = api.get("/api/transactions", search="pay-3")["items"]
            assert listed["startedMs"] > 0
            assert listed["durationMs"] is None

    def test_an_open_transaction_is_found_and_aborted(self, api: ApiClient, console_node: LocalNode) -> None:
        with topic_of(api, "paid", 1) as topic:
            pass
        with Producer(console_node.bootstrap_servers, transactional_id="pay-1") as producer:
            transaction = producer.transaction()
            transaction.__enter__()
            producer.send(topic, b"open")
            (held,) = api.get("/api/transactions/open", topic=topic)["items"]
            assert (held["lastStableOffset"], held["endOffset"], held["heldBack"]) == (0, 1, 1)
            (holder,) = held["producers"]
            assert (holder["transactionalId"], holder["holdsBack"], holder["hanging"]) == (
                "pay-1",
                True,
                False,
            )
            (listed,) = api.get("/api/transactions", search="pay-1")["items"]
            assert (listed["state"], listed["partitions"]) == ("Ongoing", 1)
            described = api.get("/api/transaction", id="pay-1")
            assert described["partitions"] == [{"topic": topic, "partition": 0}]
            assert (
                api.post("/api/transaction/abort", id="pay-1")["producerEpoch"]
                > described["producerEpoch"] - 1
            )
            until(lambda: api.get("/api/transactions/open", topic=topic)["items"] == [])
            with pytest.raises(Exception, match=r"(?i)fenced|epoch|abort"):
                transaction.__exit__(None, None, None)
        answer = api.send(
            "POST", "/api/transactions/abort", {"topic": topic, "partition": 0, "startOffset": 0}
        )
        assert answer.error == "INVALID_TXN_STATE"

    def test_a_hanging_transaction_is_found_and_aborted(self) -> None:
        """One that is open in a partition of which its coordinator knows nothing."""
        settings = {
            "http.listener": "http://127.0.0.1:0",
            "transaction.partition.verification.enable": False,
        }
        with LocalNode(settings) as node:
            assert node.http_url is not None
            api = ApiClient(node.http_url)
            wire = WireProducer(node.bootstrap_servers, "hung")
            wire.make_topic()
            wire.find()
            me = wire.begin()
            assert wire.write(me, b"known", partition=1) is ErrorCode.NONE
            assert wire.write(me, b"late", version=10) is ErrorCode.NONE
            assert wire.end(me, version=4).error_code == ErrorCode.NONE
            wire.await_state("CompleteCommit")
            (held,) = api.get("/api/transactions/open", topic=wire.topic)["items"]
            (holder,) = held["producers"]
            assert (held["partition"], held["heldBack"], holder["hanging"]) == (0, 1, True)
            place = {"topic": wire.topic, "partition": 0, "startOffset": holder["startOffset"]}
            api.post("/api/transactions/abort", place)
            until(lambda: api.get("/api/transactions/open", topic=wire.topic)["items"] == [])
            assert wire.read() == ([], 1)
            wire.client.close()


class TestSecurity:
    def test_users_and_quotas(self, api: ApiClient) -> None:
        api.post("/api/users", {"name": "al/ice", "password": "pw", "mechanism": "SCRAM-SHA-256"})
        (user,) = api.get("/api/users", search="al/")["items"]
        assert user == {"name": "al/ice", "mechanisms": [{"name": "SCRAM-SHA-256", "iterations": 4096}]}
        api.delete("/api/users", name="al/ice", mechanism="SCRAM-SHA-256")
        assert api.get("/api/users", search="al/")["items"] == []
        api.post("/api/quotas", {"entity": {"user": "bob"}, "set": {"producer_byte_rate": 1024}})
        (quota,) = api.get("/api/quotas", search="bob")["items"]
        assert quota == {"entity": {"user": "bob"}, "values": {"producer_byte_rate": 1024.0}}
        api.post("/api/quotas", {"entity": {"user": "bob"}, "remove": ["producer_byte_rate"]})
        assert api.get("/api/quotas", search="bob")["items"] == []

    def test_acls_need_an_authorizer(self, api: ApiClient) -> None:
        answer = api.request("GET", "/api/acls")
        assert (answer.status, answer.error) == (404, "SECURITY_DISABLED")
        assert "PREFIXED" in api.get("/api/acls/choices")["patternTypes"]


class TestStorage:
    def test_the_files_of_a_partition_and_their_rows(self, api: ApiClient, console_node: LocalNode) -> None:
        with topic_of(api, "filed", 1) as topic:
            fill(console_node, topic, 50)
        found = api.get(f"/api/topics/{topic}/files", partition=0)
        (segment,) = found["segments"]
        assert (segment["baseOffset"], segment["endOffset"], segment["active"]) == (0, 50, True)
        assert found["state"]["endOffset"] == found["state"]["highWatermark"] == 50
        path = f"/api/topics/{topic}/files/rows"
        name = "00000000000000000000.log"
        batches = api.get(path, name=name)["rows"]
        assert sum(each["data"]["count"] for each in batches) == 50
        rows = api.get(path, name=name, records="true", limit=10)
        assert rows["next"] == 10
        more = api.get(path, name=name, records="true", limit=10, after=rows["next"])
        assert more["rows"][0]["data"] != rows["rows"][0]["data"]
        assert {each["kind"] for each in rows["rows"]} == {"batch", "record"}
        assert api.get(path, name="partition.metadata")["rows"][0]["data"]["version"] == "0"

    def test_producers_and_their_open_transactions_are_those_of_the_running_log(
        self, api: ApiClient, console_node: LocalNode
    ) -> None:
        """No snapshot is on disk before a segment is rolled."""
        with (
            topic_of(api, "held-open", 1) as topic,
            Producer(console_node.bootstrap_servers, transactional_id="of-files") as producer,
        ):
            producer.begin_transaction()
            producer.send(topic, b"not committed yet")
            (open_one,) = api.get(f"/api/topics/{topic}/files")["producers"]
            assert (open_one["currentTxnFirstOffset"], open_one["lastOffset"]) == (0, 0)
            producer.commit_transaction()

            def has_ended() -> bool:
                """The marker may come a moment after the answer."""
                (now,) = api.get(f"/api/topics/{topic}/files")["producers"]
                return (now["producerId"], now["currentTxnFirstOffset"]) == (open_one["producerId"], None)

            until(has_ended)

    @pytest.mark.parametrize("name", ["../meta.properties", "/etc/passwd", "..", "", "x\0y", "none.log"])
    def test_no_other_file_can_be_read(self, api: ApiClient, name: str) -> None:
        with topic_of(api, f"safe-{abs(hash(name))}", 1) as topic:
            pass
        assert api.request("GET", f"/api/topics/{topic}/files/rows", name=name).error == "NOT_FOUND"

    def test_log_directories(self, api: ApiClient, console_node: LocalNode) -> None:
        answer = api.get("/api/log-dirs")
        (found,) = answer["items"]
        assert (found["path"], found["error"]) == (console_node.data_dir, None)
        assert answer["scrub"] == {
            "passes": 0,
            "progress": 0.0,
            "partition": None,
            "lastPassMs": None,
            "bytesRead": 0,
            "findings": [],
        }
        assert api.get("/api/brokers/1/config")["items"]


class TestGuards:
    """Requests that a page of this console would not send."""

    @pytest.mark.parametrize(
        ("headers", "code"),
        [
            ({}, "CSRF"),
            ({"X-Ottla-Csrf": "0" * 64}, "CSRF"),
            ({"Origin": "http://evil.example"}, "ORIGIN"),
            ({"Origin": "null"}, "ORIGIN"),
            ({"Sec-Fetch-Site": "cross-site"}, "ORIGIN"),
        ],
    )
    def test_a_change_without_a_token_or_from_another_origin_is_refused(
        self, api: ApiClient, headers: dict[str, str], code: str
    ) -> None:
        if code == "ORIGIN":
            headers = {**headers, "X-Ottla-Csrf": api.get("/api/session")["csrfToken"]}
        answer = api.request("POST", "/api/topics", {"name": "stolen"}, headers=headers)
        assert (answer.status, answer.error) == (403, code)
        assert api.request("GET", "/api/topics/stolen").status == 404

    def test_the_own_origin_is_allowed(self, api: ApiClient) -> None:
        headers = {"Origin": api.url, "Sec-Fetch-Site": "same-origin"}
        assert api.request("GET", "/api/topics", headers=headers).status == 200

    def test_reads_of_other_origins_are_refused_too(self, api: ApiClient) -> None:
        assert api.request("GET", "/api/topics", headers={"Origin": "http://evil.example"}).error == "ORIGIN"

    def test_another_name_of_this_machine_is_refused(self, api: ApiClient) -> None:
        """DNS rebinding: a foreign name that has our address."""
        for path in ("/api/topics", "/console/"):
            assert api.request("GET", path, headers={"Host": "evil.example"}).status in (403, 421)

    def test_every_answer_has_the_headers_that_confine_it(self, api: ApiClient) -> None:
        for path in ("/console/", "/api/session", "/api/topics/none"):
            headers = api.request("GET", path).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"

    @pytest.mark.parametrize(
        "path", ["../console.py", "..%2fconsole.py", "%2e%2e/config.py", ".hidden", "a//b", "none.js", "lib"]
    )
    def test_only_files_of_the_pages_are_served(self, api: ApiClient, path: str) -> None:
        assert api.request("GET", f"/console/{path}").status == 404

    def test_a_body_that_is_no_json_or_too_large_is_refused(self, api: ApiClient) -> None:
        token = {"X-Ottla-Csrf": api.get("/api/session")["csrfToken"]}
        text = api.request(
            "POST", "/api/topics", {"name": "x"}, headers={**token, "Content-Type": "text/plain"}
        )
        assert text.error == "BAD_REQUEST"
        large = api.request("POST", "/api/topics", {"name": "x" * 2_000_000}, headers=token)
        assert large.status == 413


def test_a_client_that_leaves_ends_its_stream(api: ApiClient, console_node: LocalNode) -> None:
    """More streams than there may be at once, one after the other: each one's place is free again."""
    with topic_of(api, "left", 1) as topic:
        fill(console_node, topic, 1)
    path = f"/api/topics/{topic}/messages/stream"

    def has_a_place() -> bool:
        with suppress(Refused), api.events(path, **{"from": "live"}):
            return True
        return False

    for _ in range(40):
        until(has_a_place)  # the server may hear a moment later that a client has left

    def is_served() -> bool:
        with suppress(Refused), api.events(path, **{"from": "live"}) as events:
            return next(events)[0] == "progress"
        return False

    until(is_served)
