"""The znodes that a broker needs before anything else: the chroot, the cluster's id, the directories.

The id of the cluster does not tell whether ZooKeeper has lost its data: the next broker that starts writes
the same one again, and the metadata begin empty. So the first broker also writes a random id of these
metadata to `/ottla/metadata_id`, which Kafka has not, and each broker notes it beside its logs. Invariant: a
broker that has noted an id follows and leads only where ZooKeeper has the same one, as it would put its logs
aside.
"""

from __future__ import annotations

from typing import Final

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.features import GROUP_VERSION, METADATA_VERSION, SUPPORTED_FEATURES, TRANSACTION_VERSION
from ottla.metadata.log.bootstrap_metadata import bootstrap_level
from ottla.metadata.records import MetadataRecord
from ottla.protocol.metadata_records import FeatureLevelRecord
from ottla.runtime.zookeeper import ZooKeeperError, ZooKeeperErrorCode, ZooKeeperSession
from ottla.zookeeper import znodes
from ottla.zookeeper.driver.znode_reader import STORED_METADATA_VERSION

METADATA_ID: Final = "/ottla/metadata_id"


async def create_with_parents(session: ZooKeeperSession, path: str, data: bytes = b"") -> bool:
    """Create a znode and those above it; False if it was there."""
    above = path.rpartition("/")[0]
    try:
        await session.create(path, data)
    except ZooKeeperError as error:
        if error.code is ZooKeeperErrorCode.NODE_EXISTS:
            return False
        if error.code is not ZooKeeperErrorCode.NO_NODE or not above:
            raise
        await create_with_parents(session, above)
        return await create_with_parents(session, path, data)
    return True


async def prepare_cluster(
    session: ZooKeeperSession,
    cluster_id: str,
    *,
    log: str | None = None,
    metadata_id: str | None = None,
    new_id: str,
) -> str:
    """Make the cluster known in ZooKeeper, and return the id of its metadata. StorageError if another cluster
    is, or if this node belongs to metadata that are not there: it has the `log` of a partition, or has noted
    a `metadata_id`. New metadata get `new_id`.
    """
    is_new = not await _check_cluster_id(session, cluster_id)
    if is_new and (log is not None or metadata_id is not None):
        has = "has noted that its topics are in ZooKeeper" if log is None else f"has {log}"
        raise StorageError(
            f"there is no {znodes.CLUSTER_ID} in ZooKeeper, but this broker {has}: this ZooKeeper does "
            "not know its topics. Is the chroot in zookeeper.connect? Nothing was changed. If ZooKeeper has "
            "lost its data, restore it from a copy"
        )
    found_id = await read_metadata_id(session)
    if found_id is None:
        await create_with_parents(session, METADATA_ID, new_id.encode())
        found_id = await read_metadata_id(session)
        if found_id is None:
            raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, METADATA_ID)
    if metadata_id is not None and found_id != metadata_id:
        raise StorageError(other_metadata(metadata_id, found_id))
    if is_new:
        await create_with_parents(session, znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id))
        await _check_cluster_id(session, cluster_id)
    for path in znodes.PERSISTENT_PATHS:
        await create_with_parents(session, path)
    return found_id


async def _check_cluster_id(session: ZooKeeperSession, cluster_id: str) -> bool:
    """Whether ZooKeeper has the id of the cluster. StorageError if it has another one."""
    data = await _read(session, znodes.CLUSTER_ID)
    if data is None:
        return False
    found = znodes.decode_cluster_id(data)
    if found != cluster_id:
        raise StorageError(
            f"The Cluster ID {found} doesn't match stored clusterId {cluster_id} in meta.properties: the "
            "broker is trying to join the wrong cluster. Configured zookeeper.connect may be wrong; to "
            f"join that one, format empty log.dirs with cluster.id={found}"
        )
    return True


async def read_metadata_id(session: ZooKeeperSession) -> str | None:
    data = await _read(session, METADATA_ID)
    return None if data is None else data.decode(errors="replace")


async def _read(session: ZooKeeperSession, path: str) -> bytes | None:
    try:
        return (await session.get(path)).data
    except ZooKeeperError as error:
        if error.code is not ZooKeeperErrorCode.NO_NODE:
            raise
        return None


def other_metadata(noted: str, found: str | None) -> str:
    """What is wrong if ZooKeeper has other metadata than those that this node belongs to."""
    there = "has none" if found is None else f"has {found}"
    return (
        f"the topics of this node are in the metadata {noted}, and ZooKeeper {there} at {METADATA_ID}: it "
        "has lost its data, or zookeeper.connect names another path. No log is changed. Restore ZooKeeper's "
        "data from a copy, or mend zookeeper.connect"
    )


def stored_bootstrap(bootstrap: list[MetadataRecord]) -> list[MetadataRecord]:
    """The first records of a new cluster, without what has no znode: its features are those of 3.6, with the
    levels of groups and transactions that the node was formatted with.
    """
    levels = {METADATA_VERSION: STORED_METADATA_VERSION.level}
    for name in (GROUP_VERSION, TRANSACTION_VERSION):
        level = bootstrap_level(bootstrap, name)
        levels[name] = SUPPORTED_FEATURES[name].max if level is None else level
    features: list[MetadataRecord] = [
        FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items() if level
    ]
    return features + [record for record in bootstrap if not isinstance(record, FeatureLevelRecord)]
