"""The schema registry as part of a node: one for all paths and listeners that answer for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla import __version__
from ottla.node.registry.access import TopicAccess
from ottla.node.registry.schema_store import SchemaStore
from ottla.registry.parsing import SchemaParser
from ottla.registry.registry import Registry
from ottla.registry.rest import RegistryApi
from ottla.runtime.http_server import HttpMount, HttpProblem

if TYPE_CHECKING:
    from ottla.node.cluster.internal_topic import InternalTopic
    from ottla.runtime.heavy_work import HeavyWork
    from ottla.runtime.runtime import Runtime
    from ottla.runtime.tasks import TaskSupervisor
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer


class SchemaRegistryService:
    """`is_serving` says whether the node has started, and has not begun to stop."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskSupervisor,
        topic: InternalTopic,
        work: HeavyWork,
        authorizer: StandardAuthorizer | None,
        cluster_id: str,
        is_serving: Callable[[], bool],
    ) -> None:
        self.store: Final = SchemaStore(runtime, tasks, topic)
        # What was answered, by its status.
        self.answers: Final[Counter[int]] = Counter()
        self._topic: Final = topic
        self._work: Final = work
        self._authorizer: Final = authorizer
        self._cluster_id: Final = cluster_id
        self._is_serving: Final = is_serving
        self._registry: Final = Registry(self.store, SchemaParser(work))

    def mount(self, prefix: str, *, is_local: bool) -> HttpMount:
        """The routes for a path. Clients of a loopback address may do everything, as with all of HTTP."""
        if not self._is_serving():
            raise HttpProblem(503, "The node is starting; the schema registry comes with it.")
        api = RegistryApi(
            self._registry,
            TopicAccess(self._topic.name, None if is_local else self._authorizer),
            self._work,
            cluster_id=self._cluster_id,
            version=__version__,
            answers=self.answers,
        )
        return HttpMount(api.routes(prefix))

    async def close(self) -> None:
        await self.store.close()
