"""The API table: ranges, header rules and lazy loading."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from ottla.protocol.api import API, API_BY_NAME, BOTH, REMOVED, Api, ListenerType, api_name
from ottla.protocol.headers import request_header_version, response_header_version
from tests.support.newer_apis import FIRST_OF_KAFKA_4_4, OWN_APIS
from tests.support.rows import for_each

EVERY_API = [pytest.param(api, id=api.name) for api in API.values()]


def versions_of_kio(api: Api) -> range:
    return range(api.min_version, (FIRST_OF_KAFKA_4_4 | OWN_APIS).get(api.key, api.last_version + 1))


def test_the_table_has_the_apis_that_kio_has() -> None:
    assert {key for key, api in API.items() if versions_of_kio(api)} == set(api_key_map)


@for_each("api", EVERY_API)
def test_ranges_are_kafkas(api: Api) -> None:
    versions = sorted(schema_name_map[api_key_map[api.key]]) if versions_of_kio(api) else []
    assert versions == list(versions_of_kio(api))


@for_each("api", EVERY_API)
def test_headers_follow_kafkas_rules(api: Api) -> None:
    for version in versions_of_kio(api):
        request_header = load_request_schema(api.key, version).__header_schema__.__version__
        response_header = load_response_schema(api.key, version).__header_schema__.__version__
        assert request_header_version(api, version) == request_header
        assert response_header_version(api, version) == response_header


@for_each("api", EVERY_API)
def test_messages_agree_with_the_table(api: Api) -> None:
    for cls in (api.request_class, api.response_class):
        assert api.key == cls.API_KEY
        assert (api.min_version, api.last_version) == cls.VERSIONS
    assert api.latest_unstable == api.request_class.LATEST_UNSTABLE
    for version in range(api.min_version, api.last_version + 1):
        assert (version >= api.flexible_from) == api.request_class.is_flexible(version)
        assert (version >= api.flexible_from) == api.response_class.is_flexible(version)


def test_the_response_of_api_versions_never_has_tags_in_its_header() -> None:
    assert {response_header_version(API[18], version) for version in range(10)} == {0}


def test_a_version_from_the_future_has_the_header_of_the_last_one() -> None:
    assert request_header_version(API[18], 99) == 2


def test_produce_is_announced_from_zero_to_brokers_clients_only() -> None:
    assert API[0].announced_versions(ListenerType.BROKER) == (0, 13)
    assert API[0].announced_versions(ListenerType.CONTROLLER) == (3, 13)
    assert not API[0].supports(2)


def test_an_unstable_version_is_served_and_announced_on_demand_only() -> None:
    init_producer_id = API_BY_NAME["InitProducerId"]
    assert init_producer_id.announced_versions(ListenerType.BROKER) == (0, 5)
    assert init_producer_id.announced_versions(ListenerType.BROKER, unstable=True) == (0, 6)
    assert not init_producer_id.supports(6)
    assert init_producer_id.supports(6, unstable=True)


def test_listeners_are_kafkas() -> None:
    assert API_BY_NAME["Fetch"].listeners == BOTH
    assert API_BY_NAME["Vote"].listeners == {ListenerType.CONTROLLER}
    assert API_BY_NAME["Produce"].listeners == {ListenerType.BROKER}


def test_every_key_has_a_name_for_log_lines() -> None:
    assert api_name(3) == "Metadata"
    assert api_name(7) == REMOVED[7] == "ControlledShutdown"
    assert api_name(12345) == "unknown API 12345"


@pytest.mark.slow
def test_the_table_loads_no_message() -> None:
    check = (
        "import sys, ottla.protocol.api\n"
        "assert not [name for name in sys.modules if name.startswith('ottla.protocol.messages')]\n"
        "assert 'ottla.protocol.decoder' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
