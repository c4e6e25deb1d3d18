"""`Controller`: requests in, records and a response out.

It decides on an image of everything appended so far, committed or not. Its driver, `QuorumController`,
appends the records of a result, calls `Controller.replay` with them at once, and answers when they are
committed. Beside the image it keeps only state that the next active controller rebuilds: sessions of brokers
and indexes over the image. Invariant: the image changes by `Controller.replay` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ottla.metadata.controller import acls as control_acls
from ottla.metadata.controller import brokers as control_brokers
from ottla.metadata.controller import client_quotas as control_client_quotas
from ottla.metadata.controller import configs as control_configs
from ottla.metadata.controller import features as control_features
from ottla.metadata.controller import partitions as control_partitions
from ottla.metadata.controller import producer_ids as control_producer_ids
from ottla.metadata.controller import reassignment as control_reassignment
from ottla.metadata.controller import topics as control_topics
from ottla.metadata.controller.brokers import HeartbeatReply
from ottla.metadata.controller.heartbeats import BrokerHeartbeatManager
from ottla.metadata.controller.placement import RandomSource
from ottla.metadata.controller.state import (
    ConfigSchema,
    ControllerRequestContext,
    ControllerSettings,
    ControllerState,
    Decision,
    Result,
)
from ottla.metadata.image.acl_filter import AclFilter
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import AccessControlEntry
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest
from ottla.protocol.messages.controller_registration import ControllerRegistrationRequest
from ottla.protocol.messages.create_acls import CreateAclsResponse
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from ottla.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_acls import DeleteAclsResponse
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from ottla.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from ottla.protocol.metadata_records import RegisterBrokerRecord, UnregisterBrokerRecord
from ottla.protocol.names import has_collision_chars, unify_collision_chars
from ottla.runtime.steps import Steps

if TYPE_CHECKING:
    from ottla.metadata.controller.delegation_tokens import DelegationTokenIndex, DelegationTokenSettings
    from ottla.protocol.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
    )
    from ottla.protocol.messages.create_delegation_token import (
        CreateDelegationTokenRequest,
        CreateDelegationTokenResponse,
    )
    from ottla.protocol.messages.expire_delegation_token import (
        ExpireDelegationTokenRequest,
        ExpireDelegationTokenResponse,
    )
    from ottla.protocol.messages.renew_delegation_token import (
        RenewDelegationTokenRequest,
        RenewDelegationTokenResponse,
    )

ANY_CALLER = ControllerRequestContext()


class Controller:
    """The decisions of the active controller, which starts from what `loaded` has replayed; it was activated
    at `now_ns` of a monotonic clock.
    """

    def __init__(
        self,
        loaded: MetadataBatchLoader,
        settings: ControllerSettings,
        schema: ConfigSchema,
        random: RandomSource,
        new_uuid: Callable[[], bytes],
        *,
        now_ns: int,
        voters: Sequence[int] = (),
        kraft_version: int = 0,
        upgrade_quorum: Callable[[int, bool], None] | None = None,
    ) -> None:
        _, image = loaded.publish()
        self._state = ControllerState(
            image,
            settings,
            schema,
            random,
            new_uuid,
            voters or (settings.node_id,),
            kraft_version,
            upgrade_quorum,
        )
        self._replayer = loaded
        self._heartbeats = BrokerHeartbeatManager(settings.session_timeout_ms)
        # The offset of each broker's registration; a broker is caught up once it has read that far.
        self._registration_offsets: dict[int, int] = {}
        # The offset of the last record about each broker's registration.
        self._broker_change_offsets: dict[int, int] = {}
        self._collisions: dict[str, set[str]] = {}
        self._acls: set[AccessControlEntry] = set()  # those of the image
        for broker in image.cluster.brokers.values():
            self._registration_offsets[broker.id] = image.provenance.last_contained_offset
            self._heartbeats.register(broker.id, fenced=broker.fenced)
            if not broker.fenced:
                self._heartbeats.inherit_session(broker.id, broker.epoch, now_ns)

    def load(self) -> Steps[None]:
        """Build the indexes over the image that it starts from; only heartbeats that change nothing may be
        answered before.
        """
        for name in self.image.topics.by_name:
            self._index_name(name)
            yield
        for acl in self.image.acls.values():
            self._acls.add(acl)
            yield
        yield from self._state.index.load(self.image)

    @property
    def image(self) -> MetadataImage:
        return self._state.image

    @property
    def transaction_open(self) -> bool:
        """Whether the log ends inside a metadata transaction, which has to be aborted first."""
        return self._replayer.transaction_open

    def update_quorum(self, voters: Sequence[int], kraft_version: int) -> None:
        """Use these voters and this `kraft.version` for decisions from here on."""
        self._state.voters, self._state.kraft_version = voters, kraft_version

    @property
    def settings(self) -> ControllerSettings:
        return self._state.settings

    def replay(self, records: Sequence[MetadataRecord], provenance: Provenance) -> Steps[None]:
        """Replay records that were appended up to `provenance`. No decision may be made meanwhile."""
        yield from self._replayer.replay_in_steps(records, provenance)
        delta, image = self._replayer.publish()
        yield from self._state.index.follow(delta)
        registered: dict[int, int | None] = {}
        for offset, record in enumerate(records, provenance.last_contained_offset - len(records) + 1):
            if isinstance(record, RegisterBrokerRecord):
                registered[record.broker_id] = offset
            elif isinstance(record, UnregisterBrokerRecord):
                registered[record.broker_id] = None
            yield
        # At once, as heartbeats are answered between the steps.
        self._state.image = image
        for broker, at in registered.items():
            if at is None:
                self._registration_offsets.pop(broker, None)
            else:
                self._registration_offsets[broker] = at
        self._follow_brokers(delta, image)
        self._follow_acls(delta, image)
        for topic in delta.deleted_topics.values():
            self._unindex_name(topic.name)
        for created in delta.created_topics():
            self._index_name(created.name)

    def _follow_brokers(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for id in sorted(delta.changed_brokers):
            before, after = delta.base.cluster.brokers.get(id), image.cluster.brokers.get(id)
            if after is None or (before is not None and before.epoch != after.epoch):
                self._heartbeats.remove(id)
            if after is not None:
                self._heartbeats.register(id, fenced=after.fenced)
            self._broker_change_offsets[id] = image.provenance.last_contained_offset

    def _follow_acls(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for id in sorted(delta.changed_acls):
            if (before := delta.base.acls.get(id)) is not None:
                self._acls.discard(before)
        self._acls.update(image.acls[id] for id in sorted(delta.changed_acls) if id in image.acls)

    def _index_name(self, name: str) -> None:
        if has_collision_chars(name):
            self._collisions.setdefault(unify_collision_chars(name), set()).add(name)

    def _unindex_name(self, name: str) -> None:
        names = self._collisions.get(unify_collision_chars(name))
        if names is not None:
            names.discard(name)
            if not names:
                del self._collisions[unify_collision_chars(name)]

    # ACLs

    def create_acls(self, acls: Sequence[AccessControlEntry]) -> Decision[CreateAclsResponse]:
        return control_acls.create_acls(self._state, acls, self._acls)

    def delete_acls(self, filters: Sequence[AclFilter]) -> Decision[DeleteAclsResponse]:
        return control_acls.delete_acls(self._state, filters)

    # Topics and partitions

    def create_topics(
        self, request: CreateTopicsRequest, context: ControllerRequestContext = ANY_CALLER
    ) -> Decision[CreateTopicsResponse]:
        return control_topics.create_topics(self._state, request, context, self._collisions)

    def delete_topics(
        self,
        request: DeleteTopicsRequest,
        context: ControllerRequestContext = ANY_CALLER,
        *,
        version: int = 6,
    ) -> Decision[DeleteTopicsResponse]:
        return control_topics.delete_topics(self._state, request, context, version=version)

    def create_partitions(
        self, request: CreatePartitionsRequest, context: ControllerRequestContext = ANY_CALLER
    ) -> Decision[CreatePartitionsResponse]:
        return control_topics.create_partitions(self._state, request, context)

    def alter_partition(
        self, request: AlterPartitionRequest, *, version: int = 3
    ) -> Decision[AlterPartitionResponse]:
        return control_partitions.alter_partition(self._state, request, version=version)

    def elect_leaders(self, request: ElectLeadersRequest) -> Decision[ElectLeadersResponse]:
        return control_partitions.elect_leaders(self._state, request)

    def maybe_balance_partition_leaders(self) -> Decision[bool]:
        return control_partitions.maybe_balance_partition_leaders(self._state)

    def elect_unclean_leaders(self) -> Decision[bool]:
        return control_partitions.elect_unclean_leaders(self._state)

    def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest
    ) -> Decision[AssignReplicasToDirsResponse]:
        return control_partitions.assign_replicas_to_dirs(self._state, request)

    def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Decision[AlterPartitionReassignmentsResponse]:
        return control_reassignment.alter_partition_reassignments(self._state, request)

    def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> Decision[ListPartitionReassignmentsResponse]:
        return control_reassignment.list_partition_reassignments(self._state, request)

    @cached_property
    def _delegation_tokens(self) -> DelegationTokenIndex:
        from ottla.metadata.controller.delegation_tokens import DelegationTokenIndex

        return DelegationTokenIndex()

    # Configs, quotas, features, producer ids

    def alter_configs(
        self, request: AlterConfigsRequest, context: ControllerRequestContext = ANY_CALLER
    ) -> Decision[AlterConfigsResponse]:
        return control_configs.alter_configs(self._state, request, context)

    def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, context: ControllerRequestContext = ANY_CALLER
    ) -> Decision[IncrementalAlterConfigsResponse]:
        return control_configs.incremental_alter_configs(self._state, request, context)

    def alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest
    ) -> Decision[AlterUserScramCredentialsResponse]:
        from ottla.metadata.controller.scram import alter_user_scram_credentials  # rarely needed

        return alter_user_scram_credentials(self._state, request)

    def create_delegation_token(
        self,
        request: CreateDelegationTokenRequest,
        requester: tuple[str, str],
        settings: DelegationTokenSettings,
        now_ms: int,
    ) -> Result[CreateDelegationTokenResponse]:
        from ottla.metadata.controller.delegation_tokens import create_delegation_token

        return create_delegation_token(self._state, request, requester, settings, now_ms)

    def renew_delegation_token(
        self,
        request: RenewDelegationTokenRequest,
        requester: tuple[str, str],
        settings: DelegationTokenSettings,
        now_ms: int,
    ) -> Result[RenewDelegationTokenResponse]:
        from ottla.metadata.controller.delegation_tokens import renew_delegation_token

        return renew_delegation_token(
            self._state, self._delegation_tokens, request, requester, settings, now_ms
        )

    def expire_delegation_token(
        self,
        request: ExpireDelegationTokenRequest,
        requester: tuple[str, str],
        settings: DelegationTokenSettings,
        now_ms: int,
    ) -> Result[ExpireDelegationTokenResponse]:
        from ottla.metadata.controller.delegation_tokens import expire_delegation_token

        return expire_delegation_token(
            self._state, self._delegation_tokens, request, requester, settings, now_ms
        )

    def sweep_expired_delegation_tokens(self, now_ms: int) -> Result[bool]:
        from ottla.metadata.controller.delegation_tokens import sweep_expired_delegation_tokens

        return sweep_expired_delegation_tokens(self._state, now_ms)

    def alter_client_quotas(self, request: AlterClientQuotasRequest) -> Decision[AlterClientQuotasResponse]:
        return control_client_quotas.alter_client_quotas(self._state, request)

    def update_features(
        self, request: UpdateFeaturesRequest, *, version: int = 2
    ) -> Result[UpdateFeaturesResponse]:
        return control_features.update_features(self._state, request, version=version)

    def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> Result[AllocateProducerIdsResponse]:
        return control_producer_ids.allocate_producer_ids(self._state, request)

    # Brokers

    def register_broker(
        self,
        request: BrokerRegistrationRequest,
        *,
        next_offset: int,
        now_ns: int,
        supersede: bool = False,
        version: int = 4,
    ) -> Decision[int]:
        """Register a broker; `next_offset`, the offset of the first record, becomes the epoch of a new
        incarnation.
        """
        return control_brokers.register_broker(
            self._state,
            self._heartbeats,
            request,
            new_epoch=next_offset,
            now_ns=now_ns,
            supersede=supersede,
            version=version,
        )

    def register_controller(self, request: ControllerRegistrationRequest) -> Result[None]:
        return control_brokers.register_controller(self._state, request)

    def unregister_broker(self, broker: int) -> Decision[None]:
        return control_brokers.unregister_broker(self._state, broker)

    def unregister_controller(self, controller: int) -> Result[None]:
        return control_brokers.unregister_controller(self._state, controller)

    def process_broker_heartbeat(
        self, request: BrokerHeartbeatRequest, *, now_ns: int
    ) -> Decision[HeartbeatReply]:
        offset = self.track_heartbeat(request, now_ns=now_ns)
        result = yield from control_brokers.process_broker_heartbeat(
            self._state, self._heartbeats, request, registration_offset=offset
        )
        return result

    def track_heartbeat(self, request: BrokerHeartbeatRequest, *, now_ns: int) -> int:
        """Note that a broker is alive; the offset of its registration. KafkaError STALE_BROKER_EPOCH if it is
        not registered with this epoch.
        """
        broker = request.broker_id
        offset = self._registration_offsets.get(broker)
        if offset is None:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"Receive a heartbeat from broker {broker} before registration"
            )
        self._state.check_broker_epoch(broker, request.broker_epoch)
        self._heartbeats.track(broker, request.broker_epoch, now_ns)
        return offset

    def acknowledge_heartbeat(
        self, request: BrokerHeartbeatRequest, *, now_ns: int
    ) -> tuple[HeartbeatReply, int] | None:
        """Note that a broker is alive, and answer if its heartbeat changes nothing: the reply, and the offset
        of the last record that the reply rests on. None if there is something to decide. May be called while
        a decision is being made.
        """
        offset = self.track_heartbeat(request, now_ns=now_ns)
        reply = control_brokers.acknowledge_heartbeat(
            self._state, self._heartbeats, request, registration_offset=offset
        )
        return None if reply is None else (reply, self._broker_change_offsets.get(request.broker_id, -1))

    def begin_controlled_shutdown(self, broker: int, offset: int) -> None:
        """Note the last offset of the records of a heartbeat that started a controlled shutdown."""
        self._heartbeats.begin_controlled_shutdown(broker, offset)

    def maybe_fence_stale_broker(self, now_ns: int) -> Decision[bool]:
        """Fence one broker whose session has expired; the response says whether to call again.

        Brokers are fenced one at a time, so that each fencing sees the elections of the one before.
        """
        expired = self._heartbeats.maybe_remove_expired(now_ns)
        if expired is None:
            return Result([], False)
        id, epoch = expired
        registration = self.image.cluster.brokers.get(id)
        if registration is None or registration.epoch != epoch or registration.fenced:
            return Result([], True)
        records = yield from control_brokers.handle_broker_fenced(self._state, id)
        return Result(records, True, atomic=False)

    def fence_gone_broker(self, broker: int, epoch: int) -> Decision[bool]:
        """End the session of a broker whose process has ended, and fence it; the response says whether it was
        unfenced before.
        """
        registration = self.image.cluster.brokers.get(broker)
        if registration is None or registration.epoch != epoch:
            return Result([], False)
        self._heartbeats.end_session(broker, epoch)
        if registration.fenced:
            return Result([], False)
        records = yield from control_brokers.handle_broker_fenced(self._state, broker)
        return Result(records, True, atomic=False)

    def take_leave_of_broker(self, broker: int) -> Decision[None]:
        """Take a broker that is fenced, or not registered, out of leaderships and in-sync sets."""
        registration = self.image.cluster.brokers.get(broker)
        if registration is not None and not registration.fenced:
            return Result([], None)
        return Result((yield from control_brokers.leave_partitions(self._state, broker)), None, atomic=False)

    def elect_leaders_where_there_is_none(self) -> Decision[None]:
        """Have partitions without a leader be led by a replica that serves, as if it had just been
        unfenced.
        """
        return Result((yield from control_brokers.lead_leaderless(self._state)), None, atomic=False)

    def silent_brokers(self, now_ns: int, for_ns: int) -> list[tuple[int, int]]:
        """The (broker, epoch) of the unfenced brokers that have not sent a heartbeat for `for_ns`."""
        return self._unfenced(self._heartbeats.sessions_silent_since(now_ns - for_ns))

    def brokers_not_heard_since(self, since_ns: int) -> list[tuple[int, int]]:
        """The (broker, epoch) of the unfenced brokers of which no heartbeat has come since then."""
        return self._unfenced(self._heartbeats.sessions_not_heard_since(since_ns))

    def brokers_without_heartbeat(self) -> list[tuple[int, int]]:
        """The (broker, epoch) of the unfenced brokers that have not sent a heartbeat to this controller
        yet.
        """
        return self._unfenced(self._heartbeats.sessions_without_heartbeat())

    def _unfenced(self, sessions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        brokers = self.image.cluster.brokers
        return [
            (id, epoch)
            for id, epoch in sessions
            if id in brokers and brokers[id].epoch == epoch and not brokers[id].fenced
        ]

    def extend_sessions(self, gap_ns: int) -> None:
        """Prolong all sessions by a time in which this controller did not run: the heartbeats of that time
        are still unread.
        """
        self._heartbeats.extend_sessions(gap_ns)
