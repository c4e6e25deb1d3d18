"""The real process is killed while topics come, go and change: what it acknowledged is so after the restart.

One client makes topics, deletes them and changes their settings, one request after the other, until the node
is gone in the middle of one. After the restart every topic is as the last acknowledged request left it; only
of the one request without a response either outcome is right. `KILL_ROUNDS` makes it longer.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.protocol.schema import Request
from ottla.records.builder import build_batch
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until
from tests.support.wire import CLOSED, WireClient, produce_request

ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))
SEED = int(os.environ.get("KILL_SEED", str(random.SystemRandom().randrange(2**31))))
DEADLINE_SECONDS = 120
TOPIC = 2
SETTING = "delete.retention.ms"


class Changes:
    """Changes topics until the node is gone. `topics` holds what was acknowledged, by name the setting's
    value; `unsure` names the topic whose last change had no response.
    """

    def __init__(self, bootstrap: str, topics: dict[str, str], chance: random.Random) -> None:
        self.topics = topics
        self.unsure: str | None = None
        self.done = 0
        self._chance = chance
        self._wire = WireClient(bootstrap)
        self._thread = threading.Thread(target=self._run, name="changes")
        self._thread.start()

    def _run(self) -> None:
        with self._wire:
            while self._change():
                self.done += 1

    def _change(self) -> bool:
        chance, topics = self._chance, self.topics
        value = str(chance.randrange(1, 10**9))
        action = chance.choice(("make", "make", "set", "set", "delete")) if topics else "make"
        name = f"t{chance.randrange(10**9)}" if action == "make" else chance.choice(list(topics))
        self.unsure = name
        if not self._ask(action, name, value):
            return False
        if action == "delete":
            del topics[name]
        else:
            topics[name] = value
        self.unsure = None
        return True

    def _ask(self, action: str, name: str, value: str) -> bool:
        """Whether it was answered; an answer has to say that it was done."""
        request: Request
        if action == "make":
            configs = [CreatableTopicConfig(name=SETTING, value=value)]
            topic = CreatableTopic(name=name, num_partitions=3, replication_factor=1, configs=configs)
            request, version = CreateTopicsRequest(topics=[topic], timeout_ms=9000), 4
        elif action == "delete":
            request, version = DeleteTopicsRequest(topic_names=[name], timeout_ms=9000), 5
        else:
            change = AlterableConfig(name=SETTING, config_operation=0, value=value)
            resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[change])
            request, version = IncrementalAlterConfigsRequest(resources=[resource]), 1
        try:
            answer = self._wire.ask(request, version)
        except ConnectionError:
            return False
        if answer is CLOSED:
            return False
        match answer:
            case CreateTopicsResponse():
                assert answer.topics[0].error_code == 0, answer
            case DeleteTopicsResponse():
                assert answer.responses[0].error_code == 0, answer
            case IncrementalAlterConfigsResponse():
                assert answer.responses[0].error_code == 0, answer
            case _:
                raise AssertionError(answer)
        return True

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.done < count:
            assert self._thread.is_alive(), f"it ended after {self.done} changes"
            assert time.monotonic() < deadline, f"only {self.done} of {count} changes in time"
            time.sleep(0.001)

    def join(self) -> None:
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()


def found_topics(wire: WireClient) -> dict[str, str | None]:
    """The topics there are, with the value of the setting."""
    metadata = wire.get(MetadataRequest(topics=None), 12, MetadataResponse)
    names = [str(topic.name) for topic in metadata.topics]
    assert all(topic.error_code == 0 for topic in metadata.topics)
    assert all(part.error_code == 0 and part.leader_id >= 0 for t in metadata.topics for part in t.partitions)
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=[SETTING])
        for name in names
    ]
    described = wire.get(DescribeConfigsRequest(resources=resources), 4, DescribeConfigsResponse)
    return {each.resource_name: each.configs[0].value for each in described.results}


def certain(topics: Mapping[str, str | None], unsure: str | None) -> dict[str, str | None]:
    return {name: value for name, value in topics.items() if name != unsure}


def check_writable(wire: WireClient, names: list[str]) -> None:
    for name in names:
        request = produce_request(name, build_batch([(0, None, b"value")]), partition=2, timeout_ms=9000)
        answer = wire.get(request, 9, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0, (name, answer)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_what_was_acknowledged_of_topics_outlives_every_kill(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"repeat with KILL_SEED={SEED}")
    topics: dict[str, str] = {}
    unsure: str | None = None
    # A snapshot of the metadata every few changes, so that a kill also meets one half written.
    often = ("--set", "metadata.log.max.record.bytes.between.snapshots=2000")
    for _ in range(ROUNDS):
        with NodeProcess(tmp_path, *often) as node:
            with WireClient(node.bootstrap) as wire:
                found = found_topics(wire)
                assert certain(found, unsure) == certain(topics, unsure)
                check_writable(wire, chance.sample(sorted(found), min(len(found), 10)))
            topics = {name: str(value) for name, value in found.items()}
            changes = Changes(node.bootstrap, topics, chance)
            changes.wait_for(chance.randrange(1, 150))
            node.kill()
            changes.join()
            unsure = changes.unsure
    with NodeProcess(tmp_path) as node, WireClient(node.bootstrap) as wire:
        found = found_topics(wire)
        assert certain(found, unsure) == certain(topics, unsure)

        def folders() -> set[str]:
            return {path.name.rpartition("-")[0] for path in tmp_path.glob("t*-[0-9]")}

        # Those of topics that are gone may be removed a moment later.
        wait_until(lambda: folders() == set(found), "the folders are of other topics")
