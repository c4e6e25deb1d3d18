"""An unclean election of the metadata topic loses events of remote segments; no record is lost by that."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ottla import blocking
from ottla.testing.local_cluster import LocalCluster
from tests.node.test_tiered_copy import (
    SMALL_SEGMENTS,
    alter,
    consume,
    create,
    produce,
    settings,
    watermarks,
)
from tests.support.remote_store import METADATA_TOPIC, finished_segments
from tests.support.waiting import wait_until

pytestmark = pytest.mark.exhaustive


def test_events_that_an_unclean_election_loses_are_made_good(tmp_path: Path) -> None:
    store = tmp_path / "store"
    configured = settings(
        store,
        rlmm_config_remote_log_metadata_topic_num_partitions="1",
        rlmm_config_remote_log_metadata_topic_replication_factor="2",
        rlmm_config_remote_log_metadata_topic_min_isr="1",
    )
    with LocalCluster(nodes=3, settings=configured) as cluster:
        bootstrap = cluster.bootstrap_servers
        create(bootstrap, "first")
        wait_until(lambda: METADATA_TOPIC in topics(bootstrap), "there is no metadata topic")
        alter(bootstrap, METADATA_TOPIC, unclean_leader_election_enable="true")
        metadata = cluster.partition(METADATA_TOPIC)
        leader = metadata.leader_id
        (follower,) = (each for each in metadata.replica_nodes if each != leader)
        (third,) = (each.id for each in cluster.nodes if each.id not in (leader, follower))
        with blocking.Admin(bootstrap) as admin:
            admin.topics.create(
                "orders",
                assignments={0: [third]},
                configs={**SMALL_SEGMENTS, "local.retention.bytes": "1"},
            )
        data_dir = cluster.node(leader).data_dir
        produce(bootstrap, "orders", 60)
        wait_until(lambda: bool(finished_segments(data_dir, "orders")), "nothing is copied", poll_s=0.1)
        cluster.kill(follower)
        wait_until(
            lambda: list(cluster.partition(METADATA_TOPIC).isr_nodes) == [leader], "the ISR does not shrink"
        )
        produce(bootstrap, "orders", 100, first=60)
        wait_until(
            lambda: finished_segments(data_dir, "orders")[-1].end_offset > 130,
            "nothing is copied",
            poll_s=0.1,
        )
        log_dir = next(Path(cluster.node(third).data_dir).rglob("orders-0"))
        wait_until(lambda: len(list(log_dir.glob("*.log"))) <= 2, "nothing leaves the disk")
        cluster.kill(leader)
        cluster.start(follower)
        wait_until(
            lambda: cluster.partition(METADATA_TOPIC).leader_id == follower, "there is no unclean election"
        )
        data_dir = cluster.node(follower).data_dir
        wait_until(
            lambda: bool(found := finished_segments(data_dir, "orders")) and found[-1].end_offset > 130,
            "the events are not made good",
            poll_s=0.1,
        )
        assert watermarks(bootstrap, "orders") == (0, 160)
        assert consume(bootstrap, "orders", 160) == list(range(160))
        cluster.start(leader)
        produce(bootstrap, "orders", 60, first=160)
        wait_until(
            lambda: finished_segments(data_dir, "orders")[-1].end_offset > 190,
            "nothing is copied",
            poll_s=0.1,
        )
        assert consume(bootstrap, "orders", 220) == list(range(220))
        segments = finished_segments(data_dir, "orders")
        starts = [each.start_offset for each in segments]
        assert len(starts) == len(set(starts)), "a segment was copied twice"


def topics(bootstrap: str) -> list[str]:
    return list(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics)
