"""A real Iceberg REST catalog: the server of Apache Iceberg's own tests, over local files, from Maven."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ottla.testing.cluster_plan import free_ports
from tests.support.kafka_libs import Bundle, classpath

VERSION = "1.10.0"
BUNDLE = Bundle(
    f"iceberg-rest-{VERSION}",
    (
        f"org.apache.iceberg:iceberg-open-api:{VERSION}:test-fixtures",
        f"org.apache.iceberg:iceberg-core:{VERSION}",
        f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
        "org.eclipse.jetty:jetty-servlet:11.0.26",
        "org.xerial:sqlite-jdbc:3.50.3.0",
        "org.apache.hadoop:hadoop-client-api:3.4.1",
        "org.apache.hadoop:hadoop-client-runtime:3.4.1",
        "org.slf4j:slf4j-simple:2.0.17",
    ),
)
_START_SECONDS = 120


@contextlib.contextmanager
def rest_catalog(root: Path) -> Iterator[str]:
    """Run the server with its tables below a directory; the address that it answers at."""
    root.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)  # of those that no client's connection takes meanwhile
    environment = {
        **os.environ,
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": f"file://{root}/warehouse",
        "CATALOG_URI": f"jdbc:sqlite:{root}/rest.db",
    }
    command = ["java", "-Xmx256m", "-cp", classpath(BUNDLE), "org.apache.iceberg.rest.RESTCatalogServer"]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_for(f"http://127.0.0.1:{port}/v1/config", process, root / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
            return
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.1)
