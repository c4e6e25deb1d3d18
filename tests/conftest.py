"""What all tests share: Apache Kafka where the machine has Java and Maven, one loud line where it has not.

What is shared and heavy, as an Apache Kafka, a JVM with its client or a session of Spark, lives on one worker
(`tests/support/scheduling.py`). Tests that are `exhaustive` run when they are asked for: `make test-all`.
Tests are skipped only when a requirement is missing; a download or start that fails is a failure.
"""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from ottla.runtime import invariants, process
from tests.support import affected, browser, effort, fast, franz_go, kafka_libs, rows, tiers
from tests.support.apache_kafka import ApacheKafka
from tests.support.azure_server import AZURE_SKIP
from tests.support.costs import Costs
from tests.support.franz_go import FRANZ_GO_SKIP, FranzGo
from tests.support.java_driver import JavaDriver
from tests.support.kdc import KERBEROS_SKIP
from tests.support.limits import RunLimits
from tests.support.postgres import POSTGRES_SKIP
from tests.support.s3_server import S3_SKIP
from tests.support.scheduling import HeavyThingsTogether

KAFKA_SKIP = "Apache Kafka tests skipped: "
PROMETHEUS_SKIP = "Prometheus is missing: apt-get install prometheus"
# What a machine may lack, and what the reasons of skipped tests begin with.
NOT_TRIED = {
    "FRANZ-GO": FRANZ_GO_SKIP,
    "S3": S3_SKIP,
    "AZURE'S EMULATOR": AZURE_SKIP,
    "KERBEROS": KERBEROS_SKIP,
    "POSTGRESQL AND DEBEZIUM": POSTGRES_SKIP,
}

# How long examples take says more about what else the machine does than about the code. They are the same
# in each run; `OTTLA_THOROUGH=1` draws others.
settings.register_profile(
    "ottla",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=not effort.THOROUGH,
)
settings.load_profile("ottla")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="DIRECTORY", help="write there what tests and fixtures take")
    affected.add_option(parser)
    fast.add_option(parser)
    rows.add_option(parser)
    tiers.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    process.raise_open_file_limit()  # a worker has nodes, and their clients by the hundred, in one process
    invariants.check_thoroughly()
    _import_as_users_do(config)
    _print_tracebacks_without_parsing()
    config.pluginmanager.register(RunLimits(config))
    if directory := config.getoption("--costs"):
        config.pluginmanager.register(Costs(config, Path(directory).resolve()))
    if config.getoption("--affected") is not None:
        config.pluginmanager.register(affected.Affected(config))
    rows.choose(config)
    if config.getoption("--witnesses"):
        tiers.choose(config, tiers.WITNESSES)
    if config.getoption("--fast"):
        config.pluginmanager.register(fast.Fast(config))


def _import_as_users_do(config: pytest.Config) -> None:
    """Pytest rewrites the asserts of a package that brings a plugin, as ours does, as it is imported. A node
    imports in its own thread, and where two threads make code of syntax trees at once, CPython 3.11 may fail.
    """
    hook: Any = config.pluginmanager.rewrite_hook
    if hasattr(hook, "_must_rewrite"):
        hook._must_rewrite.discard("ottla")
        hook.mark_rewrite()  # forgets what it has found out by the names before


def _print_tracebacks_without_parsing() -> None:
    """A traceback that is logged parses its lines to underline a part of them. Where that happens within
    another parse, in a collection of garbage that finds a failed task or in a node's thread, CPython 3.11
    fails the outer one: `inspect.getsource`, by which Hypothesis begins a test, raises a SystemError.
    """
    if hasattr(traceback, "_extract_caret_anchors_from_line_segment"):
        traceback._extract_caret_anchors_from_line_segment = lambda segment: None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> HeavyThingsTogether:
    return HeavyThingsTogether(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Without one of its workers xdist may wait without end; the run ends, and its report names the test."""
    if error is not None:
        node.config.pluginmanager.get_plugin("dsession").shouldstop = f"a worker died: {error}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = kafka_libs.missing_requirement()
    for item in items:
        if missing is not None and item.get_closest_marker("kafka") is not None:
            item.add_marker(pytest.mark.skip(reason=KAFKA_SKIP + missing))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch what Maven has to bring before the tests, whose time is limited. The first test that needs a file
    that could not be fetched tries again and reports the error.
    """
    gc.collect()
    gc.freeze()  # thousands of tests are there to stay: simulated lives need not walk over them at their end
    if kafka_libs.missing_requirement() is None and not session.config.option.collectonly:
        marks = {mark.name for item in session.items for mark in item.iter_markers()}
        with contextlib.suppress(Exception):
            for bundle in kafka_libs.BUNDLES if marks & {"kafka", "spark"} else ():
                kafka_libs.classpath(bundle)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    every = terminalreporter.stats.get("skipped", [])
    if any(PROMETHEUS_SKIP in str(each.longrepr) for each in every):
        terminalreporter.write_line(
            f"NOT SCRAPED BY A REAL PROMETHEUS: {PROMETHEUS_SKIP}", yellow=True, bold=True
        )
    skipped = [each for each in every if KAFKA_SKIP in str(each.longrepr)]
    if skipped:
        missing = kafka_libs.missing_requirement()
        terminalreporter.write_line(
            f"NOT COMPARED WITH APACHE KAFKA: {len(skipped)} tests skipped, {missing}", yellow=True, bold=True
        )
    for name, reason in NOT_TRIED.items():
        if untried := [each for each in every if reason in str(each.longrepr)]:
            missing = str(untried[0].longrepr).partition(reason)[2].removesuffix("')")
            terminalreporter.write_line(
                f"NOT TRIED WITH {name}: {len(untried)} tests skipped, {missing}", yellow=True, bold=True
            )
    if untried := [each for each in every if kafka_libs.OLDER_KAFKA_SKIP in str(each.longrepr)]:
        terminalreporter.write_line(
            f"NOT IMPORTED FROM AN OLDER KAFKA: {len(untried)} tests skipped, no jars of Apache Kafka "
            f"{kafka_libs.OLDER_KAFKA_VERSION}",
            yellow=True,
            bold=True,
        )
    unseen = [each for each in every if browser.BROWSER_SKIP in str(each.longrepr)]
    if unseen:
        missing = browser.missing_requirement()
        terminalreporter.write_line(
            f"NOT SEEN IN A BROWSER: {len(unseen)} tests skipped, {missing}", yellow=True, bold=True
        )


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """One running Apache Kafka for the whole run; a test that stops or fills it starts its own instead."""
    with ApacheKafka(tmp_path_factory.mktemp("apache-kafka")) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def java_driver() -> Iterator[JavaDriver]:
    """A JVM with Kafka's Java client 4.3.1 and its command-line tools."""
    with JavaDriver() as driver:
        yield driver


@pytest.fixture(scope="session")
def old_java_driver() -> Iterator[JavaDriver]:
    """A JVM with the Java client 3.5.0."""
    with JavaDriver(kafka_libs.OLD_CLIENT) as driver:
        yield driver


@pytest.fixture(scope="session")
def new_java_driver() -> Iterator[JavaDriver]:
    """A JVM with the Java client 4.4.0, which has no tools."""
    with JavaDriver(kafka_libs.NEW_CLIENT) as driver:
        yield driver


@pytest.fixture(scope="session")
def franz() -> FranzGo:
    """A client made of franz-go, where the machine has Go."""
    try:
        return franz_go.program()
    except franz_go.NoFranzGo as error:
        pytest.skip(f"{FRANZ_GO_SKIP}{error}")
