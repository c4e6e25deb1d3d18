"""The options of the sink: defaults, and the message for each mistake."""

from __future__ import annotations

import pickle

import pytest

from ottla.spark.sink.options import DeliveryGuarantee, SinkOptions, TwoPhaseCommitMode, sink_options
from tests.support.rows import for_each

BROKERS = {"kafka.bootstrap.servers": "here:9092"}


def test_defaults_are_exactly_once_with_two_phase_commits_where_brokers_allow_them() -> None:
    found = sink_options(BROKERS)
    assert (found.delivery, found.two_phase, found.topic) == (
        DeliveryGuarantee.EXACTLY_ONCE,
        TwoPhaseCommitMode.AUTO,
        None,
    )
    assert found.fail_on_lost
    assert found.transaction_timeout_ms is None


def test_names_of_options_are_read_without_case() -> None:
    found = sink_options({**BROKERS, "TOPIC": "orders", "Kafka.Linger.MS": "7"})
    assert found.topic == "orders"
    assert found.settings["linger.ms"] == "7"


def test_a_timeout_of_ones_own_sets_two_phase_commits_aside() -> None:
    found = sink_options({**BROKERS, "kafka.transaction.timeout.ms": "5000"})
    assert (found.transaction_timeout_ms, found.two_phase) == (5000, TwoPhaseCommitMode.OFF)


def test_options_survive_the_way_to_a_task() -> None:
    found = sink_options({**BROKERS, "topic": "orders", "kafka.compression.type": "zstd"})
    assert pickle.loads(pickle.dumps(found)) == found


WRONG = [
    ({"kafka.bootstrap.servers": ""}, "set kafka.bootstrap.servers"),
    ({"topic": " "}, "the option topic is empty"),
    ({"tpoic": "orders"}, "did you mean topic"),
    ({"frobnicate": "1"}, "has no option 'frobnicate' for writing"),
    ({"delivery": "twice"}, "allowed are exactly-once and at-least-once"),
    ({"onLostTransactions": "ignore"}, "allowed are fail and report"),
    ({"twoPhaseCommit": "perhaps"}, "allowed are auto and true and false"),
    ({"twoPhaseCommit": "true", "kafka.transaction.timeout.ms": "1000"}, "exclude each other"),
    ({"transactionalIdPrefix": " "}, "1 to 200 characters"),
    ({"transactionalIdPrefix": "x" * 201}, "1 to 200 characters"),
    ({"kafka.transactional.id": "mine"}, "transactionalIdPrefix"),
    ({"kafka.transaction.timeout.ms": "0"}, "must be at least 1"),
    ({"kafka.key.serializer": "x"}, "convert the column `key`"),
    ({"kafka.linger.msx": "1"}, "did you mean kafka.linger.ms"),
    ({"kafka.acks": "1"}, "it needs acks=all; or write with delivery"),
    ({"kafka.enable.idempotence": "false"}, "enable.idempotence=false"),
    ({"kafka.compression.type": "brotli"}, "allowed are none, gzip, snappy, lz4, zstd"),
    ({"kafka.linger.ms": "soon"}, "'soon' is not a number"),
    ({"txnVersion": "1"}, "txnAppId and txnVersion go together"),
    ({"txnAppId": "nightly", "txnVersion": "-1"}, "a whole number from 0 to"),
    ({"txnAppId": "x" * 101, "txnVersion": "1"}, "at most 100 characters"),
    ({"txnAppId": "nightly", "txnVersion": "1", "delivery": "at-least-once"}, "nothing is recognised"),
]


def test_the_identities_of_batch_writes_share_a_client_and_no_names() -> None:
    def identified(app: str, version: int) -> SinkOptions:
        return sink_options({**BROKERS, "txnAppId": app, "txnVersion": str(version)})

    assert identified("nightly", 1) == identified("nightly", 2)
    known = [identified(app, 0).write_id for app in ("app.b", "a-app.b", "a/b", "a b")]
    assert [each.query for each in known if each] == ["app.app.b", "app.a%2Dapp.b", "app.a%2Fb", "app.a%20b"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.security.protocol", "TLS"),
        ("kafka.ssl.protocols", "secret"),
    ],
)
def test_a_security_setting_that_is_not_known_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name) as raised:
        sink_options({**BROKERS, name: value})
    assert "secret" not in str(raised.value)


@for_each(("options", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_mistake_is_reported_before_anything_is_written(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sink_options({**BROKERS, **options})


def test_a_traceparent_is_checked() -> None:
    context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert sink_options({**BROKERS, "traceparent": context}).traceparent == context
    with pytest.raises(ValueError, match="is not the context of a trace"):
        sink_options({**BROKERS, "traceparent": "auto"})
