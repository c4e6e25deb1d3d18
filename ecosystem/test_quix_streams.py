"""Quix Streams' example counts each payment once, though it is killed twice."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ecosystem.frameworks import EXAMPLES, PYTHON, is_installed

pytestmark = pytest.mark.skipif(
    not is_installed("quixstreams"), reason="Quix Streams is not installed: run `make ecosystem`"
)

CUSTOMERS, PAYMENTS_OF_EACH = 10, 300
# After so many totals it is killed.
KILLS = (1, 1_200)
DEADLINE_S = 280.0


def test_each_payment_counts_once_through_kills(servers: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic("payments", 2, 1), NewTopic("totals", 2, 1)]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(CUSTOMERS * PAYMENTS_OF_EACH):
        producer.produce("payments", json.dumps({"amount": 1}), key=f"customer {number % CUSTOMERS}")
    assert producer.flush(60) == 0
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader-of-totals",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    reader.subscribe(["totals"])
    command = [PYTHON, EXAMPLES / "quix_totals.py", servers, str(tmp_path / "state")]
    totals: dict[bytes, list[int]] = {}
    count, kills = 0, list(KILLS)
    program = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while count < CUSTOMERS * PAYMENTS_OF_EACH:
            assert time.monotonic() < deadline, f"{count} totals"
            message = reader.poll(1.0)
            if message is None or message.error() is not None:
                continue
            count += 1
            totals.setdefault(message.key(), []).append(json.loads(message.value())["total"])
            if kills and count >= kills[0]:
                del kills[0]
                program.kill()
                program.wait()
                program = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    finally:
        program.kill()
        program.wait()
        reader.close()
    assert not kills
    assert len(totals) == CUSTOMERS
    assert all(each == list(range(1, PAYMENTS_OF_EACH + 1)) for each in totals.values())
