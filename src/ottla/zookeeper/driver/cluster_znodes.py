"""The znodes that a broker needs before anything else: the chroot, the cluster's id, the directories."""

from __future__ import annotations

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.features import GROUP_VERSION, METADATA_VERSION, SUPPORTED_FEATURES, TRANSACTION_VERSION
from ottla.metadata.log.bootstrap_metadata import bootstrap_level
from ottla.metadata.records import MetadataRecord
from ottla.protocol.metadata_records import FeatureLevelRecord
from ottla.runtime.zookeeper import ZooKeeperError, ZooKeeperErrorCode, ZooKeeperSession
from ottla.zookeeper import znodes
from ottla.zookeeper.driver.znode_reader import STORED_METADATA_VERSION


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


async def prepare_cluster(session: ZooKeeperSession, cluster_id: str, *, log: str | None = None) -> None:
    """Make the cluster known in ZooKeeper. StorageError if another one is, or if none is and this node has
    the `log` of a partition: its topic is known elsewhere.
    """
    if log is not None and await session.exists(znodes.CLUSTER_ID) is None:
        raise StorageError(
            f"there is no {znodes.CLUSTER_ID} in ZooKeeper, but this broker has {log}: this ZooKeeper does "
            "not know its topics. Is the chroot in zookeeper.connect? Nothing was changed. If ZooKeeper has "
            "lost its data, restore it from a copy"
        )
    data = znodes.encode_cluster_id(cluster_id)
    if not await create_with_parents(session, znodes.CLUSTER_ID, data):
        found = znodes.decode_cluster_id((await session.get(znodes.CLUSTER_ID)).data)
        if found != cluster_id:
            raise StorageError(
                f"The Cluster ID {found} doesn't match stored clusterId {cluster_id} in meta.properties: the "
                "broker is trying to join the wrong cluster. Configured zookeeper.connect may be wrong; to "
                f"join that one, format empty log.dirs with cluster.id={found}"
            )
    for path in znodes.PERSISTENT_PATHS:
        await create_with_parents(session, path)


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
