"""The console of a cluster that has lost a broker."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.blocking import Admin
from ottla.testing.local_cluster import LocalCluster
from tests.console.api_client import ApiClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
def test_the_overview_says_what_a_dead_broker_means() -> None:
    with LocalCluster(3, {"http.listener": "http://127.0.0.1:0"}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            for name, bound in (("strict", "3"), ("loose", "1")):
                admin.topics.create(
                    name, partitions=2, replication_factor=3, configs={"min.insync.replicas": bound}
                )
        url = cluster.node(1).http_url
        assert url is not None
        api = ApiClient(url)
        found: dict[str, Any] = {}

        def texts() -> list[str]:
            found.update(api.get("/api/overview"))
            return [each["text"] for each in found["warnings"]]

        # A cluster that has just begun may be behind with one thing or another.
        wait_until(lambda: texts() == [], "there are warnings of a cluster that is well")
        assert found["underMinIsrPartitions"] == 0
        cluster.kill(3)
        wanted = (
            "2 partitions have fewer replicas in sync than min.insync.replicas, of topic strict: ",
            "Broker 3 has replicas, but is not in the cluster.",
            "Controller 3 is a voter of the quorum, but does not fetch from its leader.",
        )

        def all_said() -> bool:
            said = texts()
            return all(any(each.startswith(text) for each in said) for text in wanted)

        wait_until(all_said, f"not all is said: {found.get('warnings')}", 120)
        assert found["underMinIsrPartitions"] == 2
        assert found["underReplicatedPartitions"] >= 4
        assert "under-replicated" in " ".join(texts())
