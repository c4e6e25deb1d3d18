"""A throw-away node for tests and notebooks.

    with LocalNode() as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})

The node runs in a thread of this process, on an event loop of its own: it is ready several times sooner than
another process would be, needs no executable on the path, and logs and debugs with the test. It listens on a
free port of the loopback interface and keeps its data in a temporary directory, which is removed when it
stops. For a node that a test can kill, use `LocalCluster(nodes=1)` instead.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from ottla.testing.security import LocalSecurity

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
# Defaults for tests: no wait for further members of a group, and few partitions to load.
FOR_TESTS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
}


class LocalNode:
    """A node that runs for the `with` block, or from `start` to `stop`.

        >>> with LocalNode({"num.partitions": 3}) as node:
        ...     node.bootstrap_servers == f"127.0.0.1:{node.port}"
        True

    `settings` are those of `server.properties`. With `data_dir` the data is kept there for the next node with
    the same `data_dir`. `port` 0 chooses a free port. `security` is the security protocol of its listener,
    as "SSL", or a `LocalSecurity`; then clients need `client_settings` too.
    """

    def __init__(
        self,
        settings: Mapping[str, str | int | bool] | None = None,
        *,
        data_dir: str | None = None,
        port: int = 0,
        security: str | LocalSecurity | None = None,
    ) -> None:
        if isinstance(security, str):
            from ottla.testing.security import LocalSecurity

            security = LocalSecurity(security)
        self._security = security
        self._settings = settings_text(settings or {})
        self._given_dir = data_dir
        self._wanted_port = port
        self._data_dir: str | None = None
        self._port = 0
        self._http_url: str | None = None
        self._schema_registry_url: str | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        if self._thread is None:
            return "<LocalNode, not started>"
        if not self._thread.is_alive():
            return "<LocalNode, stopped>"
        return f"<LocalNode at 127.0.0.1:{self._port}, data in {self._data_dir}>"

    @property
    def port(self) -> int:
        self._check_started()
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """The address of the node, for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str | None:
        """Where the node answers HTTP; None without the setting `http.listener`, whose port may be 0."""
        self._check_started()
        return self._http_url

    @property
    def schema_registry_url(self) -> str | None:
        """The schema registry, for `schema.registry.url`; None without `http.listener` and
        `schema.registry.listener`.
        """
        self._check_started()
        return self._schema_registry_url

    @property
    def client_settings(self) -> dict[str, str]:
        """What clients need besides `bootstrap.servers`; empty in plain text."""
        self._check_started()
        return {} if self._security is None else self._security.client_settings

    @property
    def security(self) -> LocalSecurity:
        """The certificates and settings of a node that was made with `security`."""
        if self._security is None:
            raise ValueError('this node is not secured: use LocalNode(security="SSL")')
        return self._security

    @property
    def data_dir(self) -> str:
        self._check_started()
        assert self._data_dir is not None
        return self._data_dir

    def _check_started(self) -> None:
        if not self._ready.is_set():
            raise RuntimeError("the node has not been started: use `with LocalNode() as node:` or `start()`")

    def start(self) -> Self:
        """Start the node and return when it is ready."""
        if self._thread is not None:
            raise RuntimeError("the node has been started already; make another LocalNode")
        self._data_dir = self._given_dir or self._temporary_dir()
        self._thread = threading.Thread(target=self._run, name="ottla-local-node", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) and self._error is None:
            raise TimeoutError(f"the node was not ready within {_START_SECONDS:.0f} s")
        if self._error is not None:
            self._thread.join()
            self._clean_up()
            raise self._error
        return self

    def stop(self) -> None:
        """Stop the node and remove its data, unless it has a `data_dir`. Stopping twice is harmless."""
        thread = self._thread
        if thread is None or self._loop is None or self._stop is None:
            return
        if thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(_STOP_SECONDS)
            if thread.is_alive():
                raise TimeoutError(f"the node did not stop within {_STOP_SECONDS:.0f} s")
        self._clean_up()

    def _temporary_dir(self) -> str:
        # A node that is never stopped, as in a notebook that is closed, leaves no files either.
        atexit.register(self._clean_up)
        return tempfile.mkdtemp(prefix="ottla-")

    def _clean_up(self) -> None:
        if self._given_dir is None and self._data_dir is not None:
            for path in (self._data_dir, f"{self._data_dir}-tables"):
                shutil.rmtree(path, ignore_errors=True)
            atexit.unregister(self._clean_up)

    def _run(self) -> None:
        from ottla.runtime import process
        from ottla.runtime.loop import run

        process.raise_open_file_limit()  # as `ottla start` does: many systems begin with 1,024 or fewer
        try:
            run(self._serve())
        except BaseException as error:  # `start` raises it in the thread of the caller
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from ottla.console.extension import ConsoleExtension
        from ottla.node.config.node_config import NodeConfig
        from ottla.node.node import Node
        from ottla.node.registry.extension import SchemaRegistryExtension
        from ottla.runtime.runtime import Runtime

        assert self._data_dir is not None
        protocol, secured = "PLAINTEXT", {}
        if self._security is not None:
            self._security.write(f"{self._data_dir}/security")
            protocol, secured = self._security.protocol.name, self._security.server_settings
            if "inter.broker.listener.name" not in self._settings:
                secured["security.inter.broker.protocol"] = protocol
        config = NodeConfig(
            {
                **FOR_TESTS,
                "listeners": f"{protocol}://127.0.0.1:{self._wanted_port}",
                "log.dirs": f"{self._data_dir}/data" if self._security is not None else self._data_dir,
                **secured,
                **self._settings,
            }
        )
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        runtime = Runtime.real(guest=True)
        node = Node(runtime, config, extensions=(ConsoleExtension,) if config.is_set("http.listener") else ())
        try:
            await node.start()
            self._port = node.client_endpoints()[0].port
            self._http_url = node.shared.http.url
            if node.broker is not None:
                self._schema_registry_url = node.broker.services.extension(SchemaRegistryExtension).url
            self._ready.set()
            await self._stop.wait()
        finally:
            await node.stop()
            runtime.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)


def settings_text(settings: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Write the values of settings as in `server.properties`."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }
