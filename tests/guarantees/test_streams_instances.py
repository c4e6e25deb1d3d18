"""Instances of a Kafka Streams application scale out and in as a streams group, with standby tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.testing.local_node import LocalNode
from tests.kafka.scripts.kit import batch_of, fill, make_topic
from tests.kafka.scripts.streams_groups import set_up
from tests.support.differential import Session
from tests.support.streams_instances import streams_instances

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

GROUP = "scaled"
TOPIC = "scaled-lines"
PARTITIONS = 4
TASKS = 2 * PARTITIONS  # one subtopology reads the lines, another counts their words
SETTINGS = {"group.streams.initial.rebalance.delay.ms": 0}


@pytest.mark.exhaustive
def test_instances_scale_out_and_in_with_standby_tasks(tmp_path: Path) -> None:
    with LocalNode(SETTINGS) as node:
        session = Session(node.bootstrap_servers)
        make_topic(session, TOPIC, partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            fill(session, TOPIC, batch_of(b"log segment", b"offset epoch leader"), partition=partition)
        with streams_instances(node.bootstrap_servers, tmp_path, GROUP, TOPIC) as instances:
            for port, name in enumerate("ab", 1):
                instances.start(name, port=port)
            instances.settled_ms(TASKS, "a", "b")
            assert instances.standby("a", "b") == [0, 0]

            set_up(session, GROUP, **{"streams.num.standby.replicas": "1"})
            instances.wait(
                lambda: sum(instances.standby("a", "b")) == PARTITIONS, "standby tasks are missing"
            )
            # Each knows where the partitions of the other are: those of lines, and of their words.
            instances.wait(
                lambda: all(instances.now[name].endpoints == "{1=4/2,2=4/2}" for name in "ab"),
                "endpoints are missing",
            )

            instances.start("c", threads=2, port=3)
            instances.wait(
                lambda: (
                    sorted(instances.active("a", "b", "c")) == [2, 2, 4]
                    and sum(instances.standby("a", "b", "c")) == PARTITIONS
                ),
                "the third has not got its share",
            )
            for name in "abc":
                assert not instances.now[name].active & instances.now[name].standby

            instances.stop("a")
            instances.wait(
                lambda: (
                    sum(instances.active("b", "c")) == TASKS
                    and sum(instances.standby("b", "c")) == PARTITIONS
                ),
                "the tasks of the first are missing",
            )
            instances.stop("c")
            instances.wait(
                lambda: instances.active("b") == [TASKS] and instances.standby("b") == [0],
                "the last one has not got all tasks",
            )
            instances.wait(lambda: instances.state("b") == "RUNNING", "the last one does not run")
        session.close()
