"""Events of `__remote_log_metadata` that are lost: what the store has is found there, and read as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.node.test_tiered_copy import consume, create, produce, settings, wait_until_copied, watermarks
from tests.support.remote_store import METADATA_TOPIC, finished_segments, is_settled
from tests.support.waiting import wait_until

from ottla.testing.local_node import LocalNode


def delete_metadata_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([METADATA_TOPIC])[METADATA_TOPIC].result(60)


def local_segments(node: LocalNode) -> int:
    return len(list(Path(node.data_dir, "orders-0").glob("*.log")))


@pytest.mark.slow
def test_a_metadata_topic_that_was_deleted_is_made_again_from_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with LocalNode(settings(store), data_dir=str(tmp_path / "data")) as node:
        bootstrap = node.bootstrap_servers
        create(bootstrap, "orders", local_retention_bytes="1")
        produce(bootstrap, "orders", 100)
        wait_until_copied(node.data_dir, "orders", store, 80)
        wait_until(lambda: local_segments(node) == 1, "nothing leaves the disk")
        before = finished_segments(node.data_dir, "orders")

        delete_metadata_topic(bootstrap)
        wait_until(
            lambda: finished_segments(node.data_dir, "orders") and is_settled(node.data_dir, store),
            "the metadata are not made again",
            poll_s=0.1,
        )
        found = finished_segments(node.data_dir, "orders")
        assert [each.id for each in found] == [each.id for each in before]
        assert [each.segment_leader_epochs for each in found] == [
            each.segment_leader_epochs for each in before
        ]
        assert watermarks(bootstrap, "orders") == (0, 100)
        assert consume(bootstrap, "orders", 100) == list(range(100))
        produce(bootstrap, "orders", 50, first=100)
        wait_until_copied(node.data_dir, "orders", store, 130)
        assert consume(bootstrap, "orders", 150) == list(range(150))
        # A node that was not there when they were lost finds them too.
        delete_metadata_topic(bootstrap)
    with LocalNode(settings(store), data_dir=str(tmp_path / "data")) as node:
        assert consume(node.bootstrap_servers, "orders", 150) == list(range(150))
        assert watermarks(node.bootstrap_servers, "orders") == (0, 150)
