"""Where keys go: the same partitions as Apache Kafka's own producer chooses."""

from __future__ import annotations

import random

import pytest

from ottla import blocking
from ottla.records._kernel import partition_for
from ottla.testing.local_node import LocalNode
from tests.support import java

PARTITIONS = 17
KEYS = 10_000
LETTERS = "".join(map(chr, (*range(33, 127), *range(0x100, 0x180), *range(0x4E00, 0x4E40), 0x1F600)))


@pytest.mark.kafka
def test_ten_thousand_random_keys(ottla_for_clients: LocalNode, fresh_name: str) -> None:
    servers = ottla_for_clients.bootstrap_servers
    with blocking.Admin(servers) as admin:
        admin.topics.create(fresh_name, partitions=PARTITIONS)
    dice = random.Random(1)
    keys = ["".join(dice.choices(LETTERS, k=dice.randrange(1, 65))) for _ in range(KEYS)]
    java.run_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        "--bootstrap-server", servers, "--topic", fresh_name,
        "--reader-property", "parse.key=true",
        stdin="".join(f"{key}\tx\n" for key in keys),
    )  # fmt: skip
    with blocking.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for(fresh_name))
        found: dict[bytes, int] = {}
        count = 0
        while count < KEYS:
            records = consumer.poll(KEYS, timeout_ms=60_000)
            assert records, f"{count} of {KEYS} keys came"
            found |= {record.key: record.partition for record in records}
            count += len(records)
    assert found == {key.encode(): partition_for(key.encode(), PARTITIONS) for key in keys}
    assert set(found.values()) == set(range(PARTITIONS))
