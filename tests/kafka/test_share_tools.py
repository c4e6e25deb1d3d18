"""What Kafka's tools print of share groups, of a node and of Apache Kafka: the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.local_node import LocalNode
from tests.support.apache_kafka import ApacheKafka
from tests.support.java_driver import JavaDriver
from tests.support.share_driver import ShareDriver

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SHARE_GROUPS: Final = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
GROUPS: Final = "org.apache.kafka.tools.GroupsCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"
GROUP, TOPICS = "share-tools", ("share-tools-1", "share-tools-2")
# 22:13:25 on 14 November 2023 is the time of the sixth record of a partition.
BEGAN_MS: Final = 1_700_000_000_000

_TO_EARLIEST = ("--reset-offsets", "--to-earliest", "--group", GROUP)
_RESETS = (
    (SHARE_GROUPS, "--describe", "--group", "share-tools-none"),
    (SHARE_GROUPS, "--delete", "--group", "share-tools-none"),
    (SHARE_GROUPS, *_TO_EARLIEST, "--topic", TOPICS[0], "--dry-run"),
    (SHARE_GROUPS, *_TO_EARLIEST, "--topic", TOPICS[0], "--execute"),
    (SHARE_GROUPS, *_TO_EARLIEST, "--topic", "share-tools-none", "--execute"),
    (SHARE_GROUPS, *_TO_EARLIEST, "--topic", f"{TOPICS[0]}:7", "--execute"),
    (
        *(SHARE_GROUPS, "--reset-offsets", "--to-datetime", "2023-11-14T22:13:25.000"),
        *("--group", GROUP, "--topic", f"{TOPICS[0]}:1", "--execute"),
    ),
    (SHARE_GROUPS, "--describe", "--group", GROUP, "--verbose"),
    (SHARE_GROUPS, *_TO_EARLIEST, "--topic", TOPICS[0], "--topic", TOPICS[1], "--execute"),
    (SHARE_GROUPS, "--describe", "--group", GROUP, "--members", "--verbose"),
    (SHARE_GROUPS, "--describe", "--group", GROUP, "--state", "--verbose"),
    (
        CONFIGS,
        "--alter",
        "--entity-type",
        "groups",
        "--entity-name",
        GROUP,
        "--add-config",
        "share.nothing=1",
    ),
    (
        *(CONFIGS, "--alter", "--entity-type", "groups", "--entity-name", GROUP),
        *("--add-config", "share.record.lock.duration.ms=20000"),
    ),
    (CONFIGS, "--describe", "--entity-type", "groups", "--entity-name", GROUP),
)
_WITH_A_MEMBER = (
    (SHARE_GROUPS, "--describe", "--group", GROUP, "--offsets", "--verbose"),
    (SHARE_GROUPS, "--describe", "--group", GROUP, "--members", "--verbose"),
    (SHARE_GROUPS, "--describe", "--group", GROUP, "--state", "--verbose"),
    (SHARE_GROUPS, *_TO_EARLIEST, "--topic", TOPICS[0], "--execute"),
    (SHARE_GROUPS, "--delete-offsets", "--group", GROUP, "--topic", TOPICS[0]),
    (SHARE_GROUPS, "--delete", "--group", GROUP),
    (GROUPS, "--list", "--share"),
)
_EMPTY_AGAIN = (
    (SHARE_GROUPS, "--delete-offsets", "--group", GROUP, "--topic", TOPICS[1]),
    (SHARE_GROUPS, "--describe", "--group", GROUP),
    (SHARE_GROUPS, "--list", "--state", "Empty"),
    (SHARE_GROUPS, "--delete", "--group", GROUP),
    (SHARE_GROUPS, "--describe", "--group", GROUP),
)


def life_of_a_group(
    bootstrap: str, java_driver: JavaDriver, driver: ShareDriver, settle: Callable[[], None] | None = None
) -> list[tuple[str, list[str]]]:
    """Each command, and what the tool prints. `settle` waits until the broker knows what was changed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(TOPICS[0], 2, 1), NewTopic(TOPICS[1], 1, 1)]).values():
        done.result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(30):
        topic, partition = TOPICS[number % 3 // 2], number % 3 % 2
        producer.produce(topic, str(number), partition=partition, timestamp=BEGAN_MS + number // 3 * 1000)
    assert producer.flush(60) == 0
    printed: list[tuple[str, list[str]]] = []

    def run(when: str, commands: tuple[tuple[str, ...], ...]) -> None:
        for main, *arguments in commands:
            done = java_driver.tool(main, "--bootstrap-server", bootstrap, *arguments, check=False)
            lines = _plain(done.text)
            if "--list" in arguments:
                # Other tests may have made groups.
                lines = [line for line in lines if GROUP in line]
            command = f"{when}: {main.rpartition('.')[2]} {' '.join(arguments)}"
            printed.append((command, [f"exit {done.exit_code}", *lines]))
            if settle is not None and "--alter" in arguments:
                settle()

    run("resets", _RESETS)
    member = driver.member(bootstrap, GROUP, *TOPICS, client_id="worker")
    member.take_until(lambda all: len(all) == 30)
    run("with a member", _WITH_A_MEMBER)
    member.close()
    run("empty again", _EMPTY_AGAIN)
    return printed


def _plain(text: str) -> list[str]:
    """The lines, sorted, without what a broker makes up, and without places in the code of the tool."""
    text = re.sub(r"[\w-]{22}\b", "<id>", text)
    text = re.sub(r"\d+\.\d+\.\d+\.\d+(:\d+)?", "<address>", text)
    lines = (re.sub(r" +", " ", line).strip() for line in text.splitlines())
    return sorted(line for line in lines if line and not line.startswith("at "))


def test_the_tools_print_the_same(
    apache_kafka: ApacheKafka, ottla: LocalNode, java_driver: JavaDriver
) -> None:
    with ShareDriver() as driver:
        expected = life_of_a_group(apache_kafka.bootstrap, java_driver, driver, apache_kafka.settle)
        actual = life_of_a_group(ottla.bootstrap_servers, java_driver, driver)
    assert actual == expected
    described = dict(actual)[
        f"with a member: ShareGroupCommand --describe --group {GROUP} --offsets --verbose"
    ]
    assert sum(line.startswith(f"{GROUP} {TOPICS[0]} ") for line in described) == 2, described
