"""docs/compatibility.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.compatibility import ACCEPTED, HONOURED, KIPS, REFUSED, effect, page
from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API, API_BY_NAME
from ottla.security.tls.settings import JAVA_ONLY

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"

# The page is made from the sources of all settings.
pytestmark = pytest.mark.slow


def test_the_committed_page_is_current() -> None:
    assert PAGE.read_text() == page(), (
        "run `python -m ottla.cli.compatibility > docs/compatibility.md` and commit it"
    )


def test_every_api_is_on_the_page_once() -> None:
    lines = page().splitlines()
    for key, api in API.items():
        assert sum(line.startswith(f"| {key} | {api.name} |") for line in lines) == 1
    assert "91 of 91 APIs" in page()


def test_kips_name_apis_and_versions_that_exist() -> None:
    for kip in KIPS:
        for name, version in kip.needs.items():
            assert version <= API_BY_NAME[name].last_version, kip
    assert [kip.number for kip in KIPS] == sorted({kip.number for kip in KIPS})


def test_a_setting_counts_as_honoured_only_if_code_asks_for_it() -> None:
    assert effect("a broker", "num.partitions") == HONOURED
    assert effect("a broker", "log.retention.hours") == HONOURED
    assert effect("a topic", "retention.ms") == HONOURED
    assert effect("a broker", "num.io.threads") == ACCEPTED
    assert effect("a broker", "kafka.metrics.reporters") == ACCEPTED


def test_settings_of_groups_have_the_effect_that_the_page_says() -> None:
    for name in ("share.record.lock.duration.ms", "share.delivery.count.limit", "share.auto.offset.reset"):
        assert effect("a group", name) == HONOURED, name
    # Of a node, for groups that have none of their own; bounds; and the topic of their state.
    for name in (
        "group.share.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
        "group.streams.max.standby.replicas",
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.replication.factor",
    ):
        assert effect("a broker", name) == HONOURED, name
    assert effect("a broker", "share.coordinator.threads") == ACCEPTED


def test_every_api_of_kafka_is_served() -> None:
    assert len(ROUTES) == len(API) == 93
    assert sum(api.is_of_kafka for api in API.values()) == 91
    assert "Not served" not in page()


def test_settings_of_security_have_the_effect_that_the_page_says() -> None:
    # Asked for by a constant, by one of another module, and by a text that is put together.
    for name in (
        "connections.max.reauth.ms",
        "sasl.jaas.config",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "ssl.client.auth",
        "sasl.enabled.mechanisms",
    ):
        assert effect("a broker", name) == HONOURED, name
    # Known by name, and only reported.
    for name in ("security.providers", "client.quota.callback.class", *JAVA_ONLY):
        assert effect("a broker", name) == ACCEPTED, name
    for name in ("ssl.engine.factory.class", "principal.builder.class", "sasl.server.callback.handler.class"):
        assert effect("a broker", name) == REFUSED, name


def test_kips_of_security_are_listed() -> None:
    expected = {11, 43, 48, 84, 124, 152, 255, 290, 368, 371, 546, 554, 599, 612, 768}
    assert expected <= {kip.number for kip in KIPS}
