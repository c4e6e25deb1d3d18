"""The console in a browser, beside a cluster: with a login, read-only, and at Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla import blocking
from ottla.client.admin.acls import AclBinding, AclOperation, AclResourceType, PatternType
from ottla.testing.local_node import LocalNode
from tests.support.apache_kafka import ApacheKafka
from tests.support.browser import BROWSER_SKIP, Visitor, chromium, missing_requirement
from tests.support.console_process import console_beside

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MISSING = missing_requirement()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=f"{BROWSER_SKIP}{MISSING}"),
]

PASSWORD = "alice-<b>secret</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalNode]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:client;User:CN=node,O=Ottla",
    }
    with LocalNode(settings, security="SASL_SSL") as node:
        with blocking.Admin({"bootstrap.servers": node.bootstrap_servers, **node.client_settings}) as admin:
            admin.topics.create("open", partitions=1)
            admin.topics.create("secret", partitions=1)
            admin.users.set_password("alice", PASSWORD)
            admin.acls.create(
                [
                    AclBinding(
                        resource_type=AclResourceType.TOPIC,
                        resource_name="open",
                        pattern_type=PatternType.LITERAL,
                        principal="User:alice",
                        operation=AclOperation.READ,
                    )
                ]
            )
        yield node


@pytest.mark.exhaustive
def test_users_log_in_and_see_what_their_acls_allow(
    browser: Browser, secured: LocalNode, tmp_path: Path
) -> None:
    settings = {name: value for name, value in secured.client_settings.items() if "sasl" not in name}
    file = tmp_path / "console.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    pem = str(secured.security.directory / "node.pem")
    arguments = ("--command-config", str(file), "--login", "--certificate", pem, "--key", pem)
    address = {"listen": "https://127.0.0.1:0"}
    with console_beside(secured.bootstrap_servers, *arguments, **address) as url:
        visitor = Visitor(browser, url)
        page = visitor.open("topics", "Log in")
        assert page.locator("nav a").count() == 0
        assert page.evaluate("document.activeElement.name") == "username"
        visitor.screenshot("login")
        page.keyboard.type("alice")
        page.keyboard.press("Tab")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.locator(".notice.bad").wait_for()
        visitor.faults.clear()  # the browser reports the refused login
        page.locator("[name=password]").fill(PASSWORD)
        page.keyboard.press("Enter")
        page.locator("h1", has_text="Topics").wait_for()
        page.get_by_role("link", name="open", exact=True).wait_for()
        assert page.get_by_role("link", name="secret").count() == 0
        assert "User:alice" in page.locator("#who").inner_text()
        assert PASSWORD not in page.content()
        visitor.screenshot("topics-of-alice")

        # What ACLs do not allow is refused, with the ACL that is missing.
        page.get_by_role("button", name="Create topic").click()
        page.locator("dialog [name=name]").fill("not-hers")
        page.get_by_role("button", name="Create", exact=True).click()
        page.locator("dialog .notice.bad", has_text="alice").wait_for()
        page.keyboard.press("Escape")

        page.get_by_role("button", name="Log out").click()
        page.locator("h1", has_text="Log in").wait_for()
        page.reload()
        page.locator("h1", has_text="Log in").wait_for()
        visitor.faults[:] = [fault for fault in visitor.faults if "Failed to load resource" not in fault]
        assert visitor.faults == []
        visitor.close()


@pytest.mark.exhaustive
def test_a_read_only_console_has_nothing_to_press(browser: Browser, secured: LocalNode) -> None:
    file = str(secured.security.directory / "client.properties")
    arguments = ("--command-config", file, "--read-only", "--no-payloads")
    with console_beside(secured.bootstrap_servers, *arguments) as url:
        visitor = Visitor(browser, url)
        with blocking.Producer(
            {"bootstrap.servers": secured.bootstrap_servers, **secured.client_settings}
        ) as producer:
            producer.send("open", b"cannot be seen")
        for place, heading, content in (
            ("topics", "Topics", "a:text-is('secret')"),
            ("topic/secret", "secret", "td:has-text('epoch')"),
            ("topic/open/messages", "open", "text=does not show what messages hold"),
            ("topic/secret/config", "secret", "td:has-text('retention.ms')"),
            ("users", "Users", "td:has-text('alice')"),
            ("acls", "ACLs", "td:has-text('User:alice')"),
            ("quotas", "Quotas", "text=There are no quotas."),
        ):
            page = visitor.open(place, heading)
            page.locator(content).first.wait_for()
            names = {name.strip() for name in page.locator("main button").all_inner_texts()}
            changing = ("Create", "Delete", "Add", "Elect", "Change", "Set ", "Produce", "Reset", "Remove")
            assert [name for name in names if name.startswith(changing)] == [], place
            assert "cannot be seen" not in page.content()
        assert "read-only" in page.locator("#who").inner_text()
        assert visitor.faults == []
        visitor.close()


@pytest.mark.kafka
def test_beside_apache_kafka(browser: Browser, apache_kafka: ApacheKafka) -> None:
    bootstrap = apache_kafka.bootstrap
    with blocking.Producer(bootstrap) as producer:
        for number in range(20):
            producer.send_nowait("seen-in-console", b'{"n": %d}' % number, key=b"k")
        producer.flush()
    reader = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    with blocking.Consumer(bootstrap, group_id="seen-by-browser", **reader) as consumer:
        consumer.subscribe("seen-in-console")
        while not consumer.poll(5):
            pass
        consumer.commit()
    with console_beside(bootstrap) as url:
        visitor = Visitor(browser, url, theme="dark")
        for place, heading, content in (
            ("overview", "Overview", "td:has-text('127.0.0.1')"),
            ("topics", "Topics", "a:text-is('seen-in-console')"),
            ("topic/seen-in-console", "seen-in-console", "td:has-text('epoch')"),
            ("topic/seen-in-console/messages", "seen-in-console", "td.payload"),
            ("topic/seen-in-console/config", "seen-in-console", "td:has-text('retention.ms')"),
            ("topic/seen-in-console/readers", "seen-in-console", "a:text-is('seen-by-browser')"),
            ("topic/__consumer_offsets/messages", "__consumer_offsets", "td.payload:has-text('offset')"),
            ("groups", "Groups", "a:text-is('seen-by-browser')"),
            ("group?id=seen-by-browser", "seen-by-browser", "a:has-text('seen-in-console-0')"),
            ("transactions", "Transactions", "text=All transactions"),
            ("brokers", "Brokers", "td:has-text('127.0.0.1')"),
            ("broker/1", "Broker 1", "td:has-text('log.dirs')"),
            ("log-dirs", "Log directories", "a:has-text('seen-in-console-0')"),
            ("users", "Users", "text=No user has SCRAM credentials."),
            ("quotas", "Quotas", "text=There are no quotas."),
        ):
            page = visitor.open(place, heading)
            page.locator(content).first.wait_for()
            assert page.locator(".notice.bad").all_inner_texts() == [], place
            visitor.screenshot("kafka-" + place.replace("/", "-").replace("?", "-"))
        names = page.locator("nav a").all_inner_texts()
        assert not [name for name in names if name.startswith(("Tasks", "Pipelines"))]
        assert visitor.faults == []
        visitor.open("acls", "ACLs").get_by_text("This cluster has no authorizer").wait_for()
        visitor.close()
