"""The records that lead from one image to another.

A node that was so far behind that it fetched a snapshot has to apply the difference, as if it had read the
records in between. Invariant: `apply_records(a, records_between(a, b))` equals `b`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.metadata.features import METADATA_VERSION, MetadataVersion
from ottla.metadata.image.entities import ConfigResourceType, TopicImage, config_record
from ottla.metadata.image.image import MetadataImage, quota_record
from ottla.metadata.records import MetadataRecord
from ottla.protocol.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)


def records_between(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord]:
    """The records that turn `before` into `after`, which must have a metadata.version if it is not empty."""
    if after.is_empty:
        return
    version = after.metadata_version
    yield from _features(before, after)
    yield from _topics(before, after, version)
    yield from _cluster(before, after, version)
    yield from _configs(before, after)
    yield from _quotas(before, after)
    if after.next_producer_id > before.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=after.next_producer_id)
    yield from _security(before, after)


def _features(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord]:
    old, new = before.features.finalized_versions(), after.features.finalized_versions()
    for name in [METADATA_VERSION, *sorted((old.keys() | new.keys()) - {METADATA_VERSION})]:
        if old.get(name, 0) != new.get(name, 0):
            yield FeatureLevelRecord(name=name, feature_level=new.get(name, 0))


def _topics(
    before: MetadataImage, after: MetadataImage, version: MetadataVersion
) -> Iterator[MetadataRecord]:
    for topic_id in before.topics.by_id:
        if topic_id not in after.topics.by_id:
            yield RemoveTopicRecord(topic_id=topic_id)
    for topic_id, topic in after.topics.by_id.items():
        known: TopicImage | None = before.topics.by_id.get(topic_id)
        if known is None:
            yield topic.to_record()
        for index, registration in topic.partitions.items():
            if known is None or known.partitions.get(index) != registration:
                yield registration.to_record(topic_id, index, version, elr_enabled=after.features.elr_enabled)


def _cluster(
    before: MetadataImage, after: MetadataImage, version: MetadataVersion
) -> Iterator[MetadataRecord]:
    for id, broker in before.cluster.brokers.items():
        if id not in after.cluster.brokers:
            yield UnregisterBrokerRecord(broker_id=id, broker_epoch=broker.epoch)
    for id, broker in after.cluster.brokers.items():
        if before.cluster.brokers.get(id) != broker:
            yield broker.to_record(version)
    for id in before.cluster.controllers:
        if id not in after.cluster.controllers:
            yield UnregisterControllerRecord(controller_id=id)
    for id, controller in after.cluster.controllers.items():
        if before.cluster.controllers.get(id) != controller:
            yield controller.to_record()


def _configs(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord]:
    for resource in {**before.configs, **after.configs}:
        old, new = before.config(resource), after.config(resource)
        if resource.type == ConfigResourceType.TOPIC:
            topic = before.topics.by_name.get(resource.name)
            if topic is not None and topic.id not in after.topics.by_id:
                old = {}  # gone with its topic
        for name in old:
            if name not in new:
                yield ConfigRecord(
                    resource_type=resource.type, resource_name=resource.name, name=name, value=None
                )
        for name, value in new.items():
            if old.get(name) != value:
                yield config_record(resource, name, value)


def _quotas(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord]:
    for entity in {**before.client_quotas, **after.client_quotas}:
        old, new = before.client_quotas.get(entity, {}), after.client_quotas.get(entity, {})
        for key in old:
            if key not in new:
                yield quota_record(entity, key, None)
        for key, value in new.items():
            if old.get(key) != value:
                yield quota_record(entity, key, value)


def _security(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord]:
    for acl_id in before.acls:
        if acl_id not in after.acls:
            yield RemoveAccessControlEntryRecord(id=acl_id)
    for acl_id, acl in after.acls.items():
        if before.acls.get(acl_id) != acl:
            yield acl.to_record(acl_id)
    for user in before.scram:
        if user not in after.scram:
            yield RemoveUserScramCredentialRecord(name=user.name, mechanism=user.mechanism)
    for user, credential in after.scram.items():
        if before.scram.get(user) != credential:
            yield credential.to_record(user)
    for token in before.delegation_tokens:
        if token not in after.delegation_tokens:
            yield RemoveDelegationTokenRecord(token_id=token)
    for token, details in after.delegation_tokens.items():
        if before.delegation_tokens.get(token) != details:
            yield details.to_record()
