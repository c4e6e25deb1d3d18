"""A real Iceberg REST catalog: the server of Apache Iceberg's own tests, over files or S3, from Maven."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from ottla.testing.cluster_plan import free_ports
from tests.support.kafka_libs import Bundle, classpath, java

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
# What the server reads and writes S3 with; 65 MB, so only tests of that fetch it.
S3_BUNDLE = Bundle(
    f"iceberg-aws-{VERSION}",
    (
        f"org.apache.iceberg:iceberg-aws:{VERSION}",
        f"org.apache.iceberg:iceberg-aws-bundle:{VERSION}",
        "dev.failsafe:failsafe:3.3.2",
    ),
    transitive=False,  # what else they need is in the other one
)
_START_SECONDS = 120


def s3_properties(endpoint: str, warehouse: str, access_key: str, secret_key: str) -> dict[str, str]:
    """The properties of a server whose tables are in S3."""
    return {
        "warehouse": warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": access_key,
        "s3.secret-access-key": secret_key,
        "client.region": "us-east-1",
    }


@contextlib.contextmanager
def rest_catalog(root: Path, s3: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run the server with its tables below a directory, or in S3; the address that it answers at."""
    root.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)  # of those that no client's connection takes meanwhile
    properties = {"rest.port": str(port), "uri": f"jdbc:sqlite:{root}/rest.db"}
    properties |= s3 or {"warehouse": f"file://{root}/warehouse"}
    # As the server reads its environment: one underscore for a dot, two for a dash.
    names = {name: name.replace("-", "__").replace(".", "_").upper() for name in properties}
    environment = os.environ | {f"CATALOG_{names[name]}": value for name, value in properties.items()}
    classes = classpath(BUNDLE) if s3 is None else f"{classpath(BUNDLE)}:{classpath(S3_BUNDLE)}"
    command = [java(), "-Xmx256m", "-cp", classes, "org.apache.iceberg.rest.RESTCatalogServer"]
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
