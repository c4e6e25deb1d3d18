"""Every version of every message, byte for byte and in its JSON form, against Apache Kafka's own classes:
requests and responses against those of the newest client, the rest against those of the broker.

This is the only oracle for what internal topics and files hold. Messages with records are left to the other
oracles, as their JSON form holds no records.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode
from ottla.protocol.json_form import to_json
from ottla.protocol.schema import Message, Request, Response
from tests.support import kafka_libs
from tests.support.java import run_tool
from tests.support.messages import MessageMaker, all_messages, structs_of, versions_of
from tests.support.newer_apis import OWN_APIS

ORACLE = Path(__file__).parents[1] / "support" / "java" / "MessageOracle.java"
API_TABLE = ORACLE.with_name("ApiTable.java")
MESSAGES_EACH = 3
# Kafka generates no JSON form for a record that it only ever reads; the other one is of Kafka 4.4.
NOT_IN_JAVA = {"ZkMigrationRecord", "UnregisterControllerRecord"}


def java_classes(bundle: kafka_libs.Bundle) -> dict[str, str]:
    """The full names of the generated classes, by their simple names."""
    found = {}
    for jar in kafka_libs.classpath(bundle).split(":"):
        for path in Path(jar).parent.glob("kafka*.jar") if jar.endswith("*") else [Path(jar)]:
            for name in zipfile.ZipFile(path).namelist():
                if name.endswith("JsonConverter.class"):
                    full = name.removesuffix("JsonConverter.class").replace("/", ".")
                    found[full.rpartition(".")[2]] = full
    return found


@pytest.mark.kafka
@pytest.mark.parametrize("bundle", [kafka_libs.BROKER, kafka_libs.NEW_CLIENT], ids=lambda each: each.name)
def test_apache_kafka_writes_the_same_bytes_and_reads_the_same_message(bundle: kafka_libs.Bundle) -> None:
    known = java_classes(bundle)
    cases: list[tuple[type[Message], int, Message, str]] = []
    missing = set()
    for cls in all_messages():
        if issubclass(cls, Request | Response) != (bundle is kafka_libs.NEW_CLIENT):
            continue
        if getattr(cls, "API_KEY", None) in OWN_APIS:
            continue
        if any(field.kind == "records" for struct in structs_of(cls) for field in struct.FIELDS):
            continue
        java_class = known.get(cls.__name__ + "Data") or known.get(cls.__name__)
        if java_class is None:
            missing.add(cls.__name__)
            continue
        for version in versions_of(cls):
            for seed in range(MESSAGES_EACH):
                message = MessageMaker((cls.__name__, version, seed, "java")).make(cls, version)
                cases.append((cls, version, message, java_class))
    assert missing == (NOT_IN_JAVA if bundle is kafka_libs.BROKER else set())
    asked = [
        f"{java_class}\t{version}\t{json.dumps(to_json(message, version))}\n"
        for _, version, message, java_class in cases
    ]
    answers = run_tool(str(ORACLE), bundle=bundle, stdin="".join(asked)).out.splitlines()
    assert len(answers) == len(cases)
    for (cls, version, message, _), answer in zip(cases, answers):
        encoded, _, document = answer.partition("\t")
        assert encoded == message.encode(version).hex(), f"{cls.__name__} v{version}"
        assert json.loads(document) == to_json(message, version), f"{cls.__name__} v{version}"


@pytest.mark.kafka
def test_apis_and_errors_are_those_of_the_newest_client() -> None:
    printed = run_tool(str(API_TABLE), bundle=kafka_libs.NEW_CLIENT).out.splitlines()
    apis, errors = (
        [line.split()[1:] for line in printed if line.startswith(kind)] for kind in ("api ", "error ")
    )
    assert apis == [
        [
            str(each)
            for each in (
                api.key,
                api.name,
                api.min_version,
                api.last_version,
                api.max_version,
                str(api.forwardable).lower(),
                str(api.cluster_action).lower(),
            )
        ]
        for api in API.values()
        if api.is_of_kafka
    ]
    assert sorted(errors) == sorted(
        [str(int(code)), code.name, str(code.retriable).lower()] for code in ErrorCode
    )
