"""Tables in a real S3 server, and in a real Iceberg REST catalog: the same promises as on local files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from ottla.blocking import Admin
from ottla.spark.source.options import source_options
from ottla.spark.source.topic_table_files import find_tables, read_files
from ottla.tables.catalog import catalog_properties, open_catalog
from ottla.tables.errors import OffsetsMoved
from ottla.tables.maintenance import compact, expire, remove_orphans
from ottla.tables.settings import CATALOG_PREFIX, CatalogSettings
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.iceberg_rest import rest_catalog, s3_properties
from tests.support.kafka_libs import missing_requirement
from tests.support.s3_server import ACCESS_KEY, BUCKET, S3_SKIP, SECRET_KEY, NoS3Server, program, s3_server
from tests.support.table_metrics import metric
from tests.support.waiting import wait_until
from tests.tables.conftest import TOPIC_ID, Warehouse, batches
from tests.tables.test_latest import commit as commit_latest
from tests.tables.test_latest import latest
from tests.tables.test_table_keeper import HTTP, create, produce, records
from tests.tables.test_topic_table import JSON_SCHEMA, commit, values_of

pytestmark = pytest.mark.slow


def s3_settings(url: str, catalog: Path, secret: str = SECRET_KEY) -> dict[str, str]:
    return {
        "table.catalog.uri": f"sqlite:///{catalog}?timeout=60",
        "table.catalog.warehouse": f"s3://{BUCKET}/tables",
        "table.catalog.s3.endpoint": url,
        "table.catalog.s3.region": "us-east-1",
        "table.catalog.s3.access-key-id": ACCESS_KEY,
        "table.catalog.s3.secret-access-key": secret,
    }


def rest_settings(url: str) -> dict[str, str]:
    return {"table.catalog.type": "rest", "table.catalog.uri": url}


@pytest.fixture(scope="module")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        program()
    except NoS3Server as error:
        pytest.skip(f"{S3_SKIP}{error}")
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture(scope="module")
def rest_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if (missing := missing_requirement()) is not None:
        pytest.skip(f"the REST catalog of Apache Iceberg cannot be run: {missing}")
    with rest_catalog(tmp_path_factory.mktemp("rest")) as url:
        yield url


@pytest.fixture(scope="module")
def rest_s3_url(s3_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A REST catalog that keeps its tables in S3."""
    if (missing := missing_requirement()) is not None:
        pytest.skip(f"the REST catalog of Apache Iceberg cannot be run: {missing}")
    s3 = s3_properties(s3_url, f"s3://{BUCKET}/of-rest", ACCESS_KEY, SECRET_KEY)
    with rest_catalog(tmp_path_factory.mktemp("rest-s3"), s3) as url:
        yield url


@pytest.fixture(
    params=[
        "s3",
        pytest.param("rest", marks=[pytest.mark.kafka, pytest.mark.exhaustive]),
        pytest.param("rest-s3", marks=[pytest.mark.kafka, pytest.mark.exhaustive]),
    ]
)
def given(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The settings of a broker, with a namespace of the test's own."""
    name = f"n{abs(hash(request.node.name)) % 10**9}"
    if request.param == "s3":
        found = s3_settings(request.getfixturevalue("s3_url"), tmp_path / "catalog.db")
    elif request.param == "rest-s3":
        found = s3_settings(request.getfixturevalue("s3_url"), tmp_path / "catalog.db")
        del found["table.catalog.warehouse"]  # the catalog's own
        found |= rest_settings(request.getfixturevalue("rest_s3_url"))
    else:
        found = rest_settings(request.getfixturevalue("rest_url"))
    return found | {"table.namespace": name}


class OtherWarehouse(Warehouse):
    def __init__(self, given: dict[str, str]) -> None:
        self.settings = CatalogSettings.from_settings(given)
        self.catalog = open_catalog(self.settings, create=True)

    def load(self, name: str = "orders"):
        return self.catalog.load_table((self.settings.namespace, name))

    def rows(self, name: str = "orders") -> list[dict]:
        found = self.load(name).scan().to_arrow()
        return found.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()


def test_commits_are_made_once_and_files_are_kept_in_order(given: dict[str, str]) -> None:
    warehouse = OtherWarehouse(given)
    for n in range(3):
        commit(warehouse, [f"{n}".encode()])
    old = warehouse.table()
    old.open()
    old.append(0, 3, batches([b"3"], 3))
    commit(warehouse, [b"3", b"4"])
    with pytest.raises(OffsetsMoved):
        old.commit()
    # Leaders of two partitions have read the same metadata; the second has to begin again on newer ones.
    brokers = [warehouse.table() for _ in range(2)]
    for index, broker in enumerate(brokers, start=1):
        broker.open()
        broker.append(index, 0, batches([b"x"]))
    for broker in brokers:
        broker.commit()
    commit(warehouse, [b'{"id":7}'], schema_type="json", schema=JSON_SCHEMA)
    expected = [b"0", b"1", b"2", b"3", b"4", b'{"id":7}', b"x", b"x"]
    assert values_of(warehouse.rows()) == expected
    table = warehouse.load()
    assert compact(table, 1_000_000, 2) > 2
    now_ms = table.metadata.last_updated_ms + 10_000
    assert expire(table, 1_000, 1, now_ms) > 2
    removed = remove_orphans(table, 0, now_ms)
    # A REST catalog chooses the place of a table, which others may share: nothing is removed there.
    assert removed > 5 if given["table.catalog.uri"].startswith("sqlite") else removed == 0
    assert values_of(warehouse.rows()) == expected
    assert [row["id"] for row in warehouse.rows()][5] == 7
    assert warehouse.table().open() == {0: 6, 1: 1, 2: 1}


def test_latest_values_and_topics_made_again(given: dict[str, str]) -> None:
    warehouse = OtherWarehouse(given)
    commit_latest(warehouse, [(b"a", b"1"), (b"b", b"1")])
    commit_latest(warehouse, [(b"a", b"2"), (b"b", None), (b"c", b"1")])
    assert latest(warehouse) == {(0, b"a"): b"2", (0, b"c"): b"1"}
    commit_latest(warehouse, [(b"new", b"1")], topic_id="zzzzzzzzzz", metadata_offset=20)
    assert latest(warehouse) == {(0, b"new"): b"1"}
    assert len(warehouse.rows(f"orders____{TOPIC_ID[:8]}")) == 2


def test_brokers_that_begin_at_once_make_one_namespace_and_table(given: dict[str, str]) -> None:
    start = threading.Barrier(4)
    failures: list[Exception] = []

    def begin(partition: int) -> None:
        try:
            warehouse = OtherWarehouse(given)
            start.wait(60)
            table = warehouse.table()
            table.open()
            table.append(partition, 0, batches([b"x"]))
            table.commit()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert failures == []
    assert [row["partition"] for row in OtherWarehouse(given).rows()] == [0, 1, 2, 3]


def test_a_broker_keeps_a_table_there_that_others_read(given: dict[str, str], tmp_path: Path) -> None:
    with LocalNode(HTTP | given, data_dir=str(tmp_path / "data")) as node:
        create(node.bootstrap_servers)
        produce(node.bootstrap_servers, [b"1"] * 300)
        wait_until(lambda: metric(node, "ottla_table_rows_total") == 300, "the table has not all rows", 240)
        warehouse = OtherWarehouse(given)
        rows = warehouse.load().scan().to_arrow()
        with duckdb.connect() as connection:
            connection.register("orders", rows)
            found = connection.sql(
                'select partition, "offset", key, value from orders order by 1, 2'
            ).fetchall()
        assert found == records(node.bootstrap_servers)
        assert_commands_work(node, given)
        assert rows_of_spark_source(node, given) == found
    assert catalog_properties(warehouse.settings)["type"] in ("sql", "rest")


def assert_commands_work(node: LocalNode, given: dict[str, str]) -> None:
    """Brokers hide the address of the catalog, so commands get it, and what else is not shown."""
    ottla = CommandLine(node.bootstrap_servers)
    hidden = ottla("tables", "list")
    assert "do not show it: give it with --catalog uri=..." in hidden.err
    catalog = [
        word
        for name, value in given.items()
        if name == "table.catalog.uri" or ".s3." in name
        for word in ("--catalog", f"{name.removeprefix(CATALOG_PREFIX)}={value}")
    ]
    (listed,) = ottla.ok("tables", "list", "--json", *catalog).json
    assert (listed["state"], listed["rows"], listed["lag"]) == ("complete", 300, 0)
    assert ottla.ok("tables", "show", "orders", "--json", *catalog).json["state"] == "complete"
    assert ottla.ok("tables", "repair", "orders", "--json", *catalog).json["needs_repair"] is False


def rows_of_spark_source(node: LocalNode, given: dict[str, str]) -> list[tuple]:
    """What tasks of Spark read from the files, in this process."""
    catalog = {name: value for name, value in given.items() if name.startswith(CATALOG_PREFIX)}
    wanted = {"kafka.bootstrap.servers": node.bootstrap_servers, "subscribe": "orders", "readFrom": "table"}
    options = source_options(wanted | catalog, streaming=False)
    with Admin(node.bootstrap_servers) as admin:
        topic_id = admin.topics.describe("orders").topic_id
    files = find_tables(options, {"orders": topic_id})["orders"]
    bounds = {partition: (0, end) for partition, end in files.offsets.items()}
    return sorted(
        (row["partition"], row["offset"], row["key"], row["value"])
        for part in files.ranges(bounds, 1 << 30)
        for batch in read_files(options, part)
        for row in batch.to_pylist()
    )


def test_credentials_are_in_no_message(s3_url: str, tmp_path: Path, capfd, caplog) -> None:
    given = s3_settings(s3_url, tmp_path / "catalog.db", secret="a-wrong-secret-key")
    with LocalNode(HTTP | given, data_dir=str(tmp_path / "data")) as node:
        create(node.bootstrap_servers)
        produce(node.bootstrap_servers, [b"1"])
        wait_until(lambda: metric(node, "ottla_table_failing") == 1, "the table does not fail", 240)
    seen = caplog.text + "".join(capfd.readouterr())
    assert "the table of orders is not kept" in seen
    assert "a-wrong-secret-key" not in seen
    assert ACCESS_KEY not in seen
