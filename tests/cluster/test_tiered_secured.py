"""A cluster with logins and ACLs: its brokers reach the metadata of remote segments, and users do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ottla.testing.local_cluster import LocalCluster
from tests.node.test_tiered_copy import SMALL_SEGMENTS, settings
from tests.support.remote_store import METADATA_TOPIC, finished_segments
from tests.support.waiting import wait_until

pytestmark = pytest.mark.exhaustive

PARTITIONS = 4


def test_brokers_reach_the_metadata_by_their_own_principal_and_users_do_not(tmp_path: Path) -> None:
    configured = settings(tmp_path / "store", rlmm_config_remote_log_metadata_topic_replication_factor="1")
    with LocalCluster(nodes=2, settings=configured, security="SASL_PLAINTEXT") as cluster:
        assert cluster.plan.security is not None
        access = {
            "bootstrap.servers": cluster.bootstrap_servers,
            **cluster.plan.security.librdkafka_settings,
        }
        admin = AdminClient(access)
        topic = NewTopic("orders", PARTITIONS, 1, config=SMALL_SEGMENTS)
        admin.create_topics([topic])["orders"].result(60)
        producer = Producer({**access, "batch.num.messages": 4})
        for number in range(60 * PARTITIONS):
            producer.produce("orders", value=b"." * 1000, partition=number % PARTITIONS)
            producer.poll(0)
        assert producer.flush(60) == 0

        def copied() -> set[int]:
            found = [each for node in cluster.nodes for each in finished_segments(node.data_dir, "orders")]
            return {each.id.topic_partition.partition for each in found}

        # Leaders of partitions are not all leaders of the metadata too.
        wait_until(lambda: copied() == set(range(PARTITIONS)), "not all is copied", poll_s=0.2)
        for index in range(3):
            assert cluster.partition(METADATA_TOPIC, index).leader_id in (1, 2)

        admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(
                    "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"secret"
                )
            ]
        )["alice"].result(60)
        alice = {
            **access,
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": "secret",
        }
        denied = AdminClient(alice).list_topics(METADATA_TOPIC, timeout=60).topics[METADATA_TOPIC].error
        assert denied is not None
        assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        written = Producer(alice)
        errors: list[KafkaError | None] = []
        written.produce(METADATA_TOPIC, b"no event", on_delivery=lambda error, _: errors.append(error))
        assert written.flush(60) == 0
        assert [each and each.code() for each in errors] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
