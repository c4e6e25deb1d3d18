"""Feature levels: the table, and raising and lowering them."""

from __future__ import annotations

import pytest

from ottla.metadata.features import (
    METADATA_VERSIONS,
    SUPPORTED_FEATURES,
    bootstrap_levels,
    metadata_changed_between,
    metadata_version,
)
from ottla.metadata.image.entities import CLUSTER_DEFAULT
from ottla.metadata.records import record_version
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from tests.metadata.controller_harness import ControllerHarness

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def update(
    world: ControllerHarness, *updates: tuple[str, int, int], validate_only: bool = False, version: int = 2
) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    return world.do(world.controller.update_features(request, version=version))


def test_the_bootstrap_levels_of_4_3_1() -> None:
    assert list(bootstrap_levels().items()) == [
        ("metadata.version", 30),
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("share.version", 1),
        ("streams.version", 1),
        ("transaction.version", 2),
    ]
    assert bootstrap_levels(metadata_version(22)) == {"metadata.version": 22, "group.version": 1}


def test_unknown_levels_are_named() -> None:
    with pytest.raises(ValueError, match=r"metadata.version 99 is unknown; 7-33"):
        metadata_version(99)


@pytest.mark.parametrize(
    ("level", "partition", "broker"), [(7, 0, 1), (8, 0, 2), (17, 1, 3), (22, 1, 3), (23, 2, 3), (30, 2, 4)]
)
def test_record_versions_follow_the_metadata_version(level: int, partition: int, broker: int) -> None:
    version = metadata_version(level)
    assert record_version(PartitionRecord(), version) == partition
    assert record_version(RegisterBrokerRecord(), version) == broker
    assert record_version(NoOpRecord(), version) == 0


def test_a_registration_change_is_written_in_the_lowest_version_that_can_say_it() -> None:
    version = METADATA_VERSIONS[30]
    assert record_version(BrokerRegistrationChangeRecord(fenced=1), version) == 0
    assert record_version(BrokerRegistrationChangeRecord(in_controlled_shutdown=1), version) == 1
    assert record_version(BrokerRegistrationChangeRecord(log_dirs=[b"d" * 16]), version) == 2
    assert record_version(BrokerRegistrationChangeRecord(cordoned_log_dirs=[]), version) == 3


def test_levels_between_which_the_records_are_the_same() -> None:
    assert not metadata_changed_between(metadata_version(26), metadata_version(29))
    assert metadata_changed_between(metadata_version(30), metadata_version(29))


class TestUpdate:
    def test_up_and_down_again(self) -> None:
        world = ControllerHarness()
        assert update(world, ("streams.version", 0, SAFE_DOWNGRADE)).error_code == ErrorCode.NONE
        assert "streams.version" not in world.image.features.levels
        assert update(world, ("streams.version", 1, UPGRADE)).error_code == ErrorCode.NONE
        assert world.image.features.levels["streams.version"] == 1

    def test_validate_only(self) -> None:
        world = ControllerHarness()
        response = update(world, ("streams.version", 0, SAFE_DOWNGRADE), validate_only=True)
        assert response.error_code == ErrorCode.NONE
        assert world.image.features.levels["streams.version"] == 1

    def test_one_refusal_fails_all(self) -> None:
        world = ControllerHarness()
        response = update(world, ("streams.version", 0, SAFE_DOWNGRADE), ("group.version", 7, UPGRADE))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert response.error_message == (
            "The update failed for all features since the following feature had an error: Invalid update "
            "version 7 for feature group.version. Local controller 0 only supports versions 0-1"
        )
        assert world.image.features.levels["streams.version"] == 1

    @pytest.mark.parametrize(
        ("name", "level", "kind", "words"),
        [
            ("no.such", 1, UPGRADE, "Local controller 0 does not support this feature"),
            ("group.version", -1, UPGRADE, "A feature version cannot be less than 0"),
            ("group.version", 0, UPGRADE, "Can't downgrade the version of this feature without"),
            ("group.version", 0, 9, "The controller does not support the given upgrade type"),
            (
                "metadata.version",
                29,
                SAFE_DOWNGRADE,
                "because it might delete metadata information",
            ),
            ("metadata.version", 29, UNSAFE_DOWNGRADE, "Unsafe metadata downgrade is not supported"),
            ("metadata.version", 34, UPGRADE, "only supports versions 7-33"),
            ("kraft.version", 1, UPGRADE, "There is no quorum"),
        ],
    )
    def test_refusals(self, name: str, level: int, kind: int, words: str) -> None:
        response = update(ControllerHarness(), (name, level, kind))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert words in (response.error_message or "")

    def test_the_levels_of_kafka_4_4_are_raised_by_an_operator(self) -> None:
        world = ControllerHarness()
        assert world.image.metadata_version.level == 30
        for level, kind in ((31, UPGRADE), (30, SAFE_DOWNGRADE), (33, UPGRADE)):
            assert update(world, ("metadata.version", level, kind)).error_code == ErrorCode.NONE
            assert world.image.metadata_version.level == level
        refused = update(world, ("metadata.version", 31, SAFE_DOWNGRADE))
        assert "because it might delete metadata information" in str(refused.error_message)

    def test_a_broker_that_does_not_support_the_level_holds_it_back(self) -> None:
        world = ControllerHarness()
        update(world, ("streams.version", 0, SAFE_DOWNGRADE))
        registration = world.image.cluster.brokers[0]
        record = registration.to_record(world.image.metadata_version)
        record.features = [f for f in record.features if f.name != "streams.version"]
        world.append([record])
        response = update(world, ("streams.version", 1, UPGRADE))
        assert "does not support this feature" in (response.error_message or "")

    def test_eligible_leader_replicas_need_a_cluster_wide_min_insync_replicas(self) -> None:
        world = ControllerHarness()
        update(world, ("eligible.leader.replicas.version", 0, SAFE_DOWNGRADE))
        assert not world.image.features.elr_enabled
        update(world, ("eligible.leader.replicas.version", 1, UPGRADE))
        assert world.image.features.elr_enabled
        assert world.image.config(CLUSTER_DEFAULT)["min.insync.replicas"] == "1"

    def test_older_versions_of_the_request_get_a_line_for_each_feature(self) -> None:
        response = update(ControllerHarness(), ("streams.version", 1, UPGRADE), version=1)
        assert [result.feature for result in response.results] == ["streams.version"]


def test_every_supported_feature_can_be_registered() -> None:
    world = ControllerHarness()
    assert world.image.cluster.brokers[0].supported_features == SUPPORTED_FEATURES
