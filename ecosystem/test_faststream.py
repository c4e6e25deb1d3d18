"""FastStream's example does what it says, over aiokafka and over librdkafka."""

from __future__ import annotations

import subprocess

import pytest

from ecosystem.frameworks import EXAMPLES, PYTHON, is_installed

pytestmark = pytest.mark.skipif(
    not is_installed("faststream"), reason="FastStream is not installed: run `make ecosystem`"
)


@pytest.mark.parametrize("client", ["aiokafka", "confluent"])
def test_a_service_reads_orders_and_publishes_prices(servers: str, client: str) -> None:
    done = subprocess.run(
        [PYTHON, EXAMPLES / "faststream_orders.py", servers, client],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = sorted(line for line in done.stdout.splitlines() if line.startswith("order "))
    assert printed == [f"order {number}: {(number + 1) * 5}" for number in range(5)]
