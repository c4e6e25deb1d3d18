"""FeatureControlManager: raise and lower feature levels, within what every node of the cluster supports."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.metadata.controller.configs import elr_safety_records
from ottla.metadata.controller.state import NO_ERROR, ApiError, ControllerState, Result
from ottla.metadata.features import (
    DISABLED,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    METADATA_VERSIONS,
    VersionRange,
    metadata_changed_between,
    missing_dependency,
)
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.metadata_records import FeatureLevelRecord

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


def update_features(
    state: ControllerState, request: UpdateFeaturesRequest, *, version: int = 2
) -> Result[UpdateFeaturesResponse]:
    """Apply all updates or none: the first one that is refused fails the request."""
    if version == 0:  # the version without upgrade types
        for update in request.feature_updates:
            update.upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    wanted = {update.feature: update.max_version_level for update in request.feature_updates}
    proposed = {**state.image.features.finalized_versions(), **wanted}
    records: list[MetadataRecord] = []
    for update in request.feature_updates:
        error = _update(state, update, proposed, records)
        if not error.failed and update.feature == KRAFT_VERSION:
            error = _upgrade_quorum(state, update.max_version_level, validate_only=True)
        if error.failed:
            failed = "The update failed for all features since the following feature had an error"
            text = f"{failed}: {error.message}"
            return Result([], UpdateFeaturesResponse(error_code=int(error.code), error_message=text))
    if wanted.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0:
        records = elr_safety_records(state) + records
    if KRAFT_VERSION in wanted and not request.validate_only:
        _upgrade_quorum(state, wanted[KRAFT_VERSION], validate_only=False)
    response = UpdateFeaturesResponse()
    if version <= 1:
        response.results = [UpdatableFeatureResult(feature=u.feature) for u in request.feature_updates]
    return Result([] if request.validate_only else records, response)


def _refusal(feature: str, level: int, why: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {feature}. {why}"
    )


def _update(
    state: ControllerState,
    update: FeatureUpdateKey,
    proposed: Mapping[str, int],
    records: list[MetadataRecord],
) -> ApiError:
    name, level, kind = update.feature, update.max_version_level, update.upgrade_type
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return _refusal(name, level, "The controller does not support the given upgrade type.")
    if level < 0:
        return _refusal(name, level, "A feature version cannot be less than 0.")
    if name == KRAFT_VERSION:
        current = state.kraft_version
    else:
        current = state.image.features.finalized_versions().get(name, 0)
    reason = _unsupported_by(state, name, level)
    if reason is not None:
        return _refusal(name, level, reason)
    if level < current and kind == UPGRADE:
        return _refusal(
            name,
            level,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade.",
        )
    if level > current and kind != UPGRADE:
        return _refusal(name, level, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION:
        return _update_metadata_version(state, level, kind, records)
    if name == KRAFT_VERSION:
        if level == current:
            return NO_ERROR
        return (
            _refusal(name, level, "Can't downgrade the version of this feature.")
            if level < current
            else NO_ERROR
        )
    missing = missing_dependency(name, level, proposed)
    if missing is not None:
        return _refusal(name, level, missing)
    records.append(FeatureLevelRecord(name=name, feature_level=level))
    return NO_ERROR


def _upgrade_quorum(state: ControllerState, level: int, *, validate_only: bool) -> ApiError:
    """Raise `kraft.version`, which is in the quorum's own records; the quorum decides whether that is
    possible.
    """
    if level == state.kraft_version:
        return NO_ERROR
    if state.upgrade_quorum is None:
        return _refusal(KRAFT_VERSION, level, "There is no quorum to raise it.")
    try:
        state.upgrade_quorum(level, validate_only)
    except KafkaError as error:
        return _refusal(KRAFT_VERSION, level, error.message or error.code.name)
    return NO_ERROR


def _update_metadata_version(
    state: ControllerState, level: int, kind: int, records: list[MetadataRecord]
) -> ApiError:
    current, target = state.version, METADATA_VERSIONS[level]
    if target < current and metadata_changed_between(current, target):
        why = (
            "Unsafe metadata downgrade is not supported in this version."
            if kind == UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        return ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid metadata.version {level}. {why} The current one is {current.level}.",
        )
    records.append(FeatureLevelRecord(name=METADATA_VERSION, feature_level=level))
    return NO_ERROR


def _unsupported_by(state: ControllerState, name: str, level: int) -> str | None:
    """Say which node does not support the level; None if all nodes do."""
    local = state.settings.node_id
    nodes: list[tuple[str, Mapping[str, VersionRange]]] = [
        (f"Local controller {local}", state.settings.supported_features)
    ]
    nodes += [(f"Broker {b.id}", b.supported_features) for b in state.image.cluster.brokers.values()]
    registered = {local}
    if state.version.controller_registration:
        for controller in state.image.cluster.controllers.values():
            registered.add(controller.id)
            if controller.id != local:
                nodes.append((f"Controller {controller.id}", controller.supported_features))
    for who, features in nodes:
        supported = features.get(name, DISABLED)
        if level not in supported:
            if supported.max == 0:
                return f"{who} does not support this feature."
            return f"{who} only supports versions {supported}"
    if state.version.controller_registration:
        for voter in state.voters:
            if voter not in registered:
                return f"Controller {voter} has not registered, and may not support this feature"
    return None
