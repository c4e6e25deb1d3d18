"""The meter of a request: the time that it holds the loop, and responses that say how long to wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.rows import for_each

from ottla.node.api.request_meter import RequestMeter
from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API, API_BY_NAME, ListenerType
from ottla.security.quota.quota_managers import QuotaManagers

MS = 1_000_000


class ManualClock:
    def __init__(self) -> None:
        self.ns = 10**12

    def wall_ms(self) -> int:
        return self.ns // MS

    def monotonic_ns(self) -> int:
        return self.ns


class Connection:
    def __init__(self) -> None:
        self.throttled: list[float] = []

    def throttle(self, delay_s: float) -> None:
        self.throttled.append(delay_s)


def metered(
    clock: ManualClock,
    name: str = "Metadata",
    version: int = 12,
    listener: ListenerType = ListenerType.BROKER,
    **quotas: float,
) -> tuple[RequestMeter, QuotaManagers, Connection]:
    managers = QuotaManagers(clock)
    entity = (("user", "u"),)
    managers.update({entity: quotas}, [entity])
    connection = Connection()
    context: Any = SimpleNamespace(
        api=API_BY_NAME[name],
        version=version,
        client_id="c",
        principal=SimpleNamespace(name="u"),
        connection=connection,
        pending=SimpleNamespace(size=1_000, connection=connection, statistics=None),
    )
    return RequestMeter(managers, context, listener), managers, connection


@for_each("key", sorted(ROUTES))
def test_each_response_can_say_how_long_its_client_is_throttled(key: int) -> None:
    api = API[key]
    response = api.response_class()
    if hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = 5
        for version in range(api.min_version, api.max_version + 1):
            response.encode(version)


def test_only_the_time_counts_that_a_request_holds_the_loop() -> None:
    clock = ManualClock()
    meter, quotas, connection = metered(clock, request_percentage=1.0)
    gate: asyncio.Future[None]

    async def work() -> str:
        clock.ns += 3 * MS
        await gate
        clock.ns += 4 * MS
        return "done"

    async def main() -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        clock.ns += 2 * MS
        task = asyncio.ensure_future(meter.timed(work()))
        await asyncio.sleep(0)
        clock.ns += 900 * MS  # it waits, and others work
        gate.set_result(None)
        assert await task == "done"

    asyncio.run(main())
    assert meter._busy_ns == 9 * MS
    # They are 0.9 percents of a second, and a tenth of that is the rate over ten.
    clock.ns += 500 * MS
    meter.finish(SimpleNamespace(), None)  # type: ignore[arg-type]
    assert quotas.request.record("u", "c", 9.0, clock.wall_ms()) == 0
    assert quotas.request.record("u", "c", 0.2, clock.wall_ms()) > 0
    assert connection.throttled == []


async def test_errors_and_cancellations_pass_through() -> None:
    clock = ManualClock()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            clock.ns += MS
            raise

    meter, _, _ = metered(clock, request_percentage=1.0)
    with pytest.raises(ValueError, match="no"):
        await meter.timed(fail())
    task = asyncio.ensure_future(meter.timed(wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert meter._busy_ns == MS


def test_requests_of_nodes_are_exempt() -> None:
    clock = ManualClock()
    for name, version in (("WriteTxnMarkers", 1), ("AddPartitionsToTxn", 5)):
        meter, _, connection = metered(clock, name, version, request_percentage=1e-9)
        clock.ns += 100 * MS
        meter.finish(SimpleNamespace(), None)  # type: ignore[arg-type]
        assert connection.throttled == []
    meter, _, connection = metered(clock, "AddPartitionsToTxn", 3, request_percentage=1e-9)
    clock.ns += 100 * MS
    meter.finish(SimpleNamespace(), None)  # type: ignore[arg-type]
    assert connection.throttled == [1.0]


CONTROLLER = ListenerType.CONTROLLER


@for_each("key", sorted(key for key in ROUTES if CONTROLLER in ROUTES[key].listeners))
def test_by_the_listener_of_controllers_only_requests_of_nodes_are_exempt(key: int) -> None:
    api = API[key]
    clock = ManualClock()
    meter, _, connection = metered(clock, api.name, api.max_version, CONTROLLER, request_percentage=1e-9)
    clock.ns += 100 * MS
    meter.finish(SimpleNamespace(), None)  # type: ignore[arg-type]
    of_nodes = api.name == "Fetch" or ListenerType.BROKER not in api.listeners
    assert connection.throttled == ([] if of_nodes else [1.0])


def test_work_in_a_thread_counts() -> None:
    clock = ManualClock()
    meter, _, connection = metered(clock, request_percentage=1.0)

    def work() -> None:
        clock.ns += 200 * MS

    async def request() -> None:
        await asyncio.to_thread(meter.measured, work)

    async def main() -> None:
        await meter.timed(request())

    asyncio.run(main())
    meter.finish(SimpleNamespace(), None)  # type: ignore[arg-type]
    assert meter._busy_ns >= 200 * MS
    assert connection.throttled == [1.0]


@pytest.mark.parametrize("name", ["DescribeQuorum", "UpdateFeatures"])
def test_requests_of_operators_count_though_nodes_may_send_them_too(name: str) -> None:
    clock = ManualClock()
    meter, _, connection = metered(clock, name, 0, request_percentage=1e-9)
    clock.ns += 100 * MS
    meter.finish(SimpleNamespace(), None)  # type: ignore[arg-type]
    assert connection.throttled == [1.0]


@pytest.mark.parametrize(
    ("name", "version"), [("WriteTxnMarkers", 1), ("AddPartitionsToTxn", 5), ("Fetch", 17)]
)
def test_a_request_of_nodes_that_is_denied_counts(name: str, version: int) -> None:
    clock = ManualClock()
    meter, _, connection = metered(clock, name, version, request_percentage=1e-9)
    meter.exempt()
    meter.on_denied()
    clock.ns += 100 * MS
    meter.finish(SimpleNamespace(), None)  # type: ignore[arg-type]
    assert connection.throttled == [1.0]


def test_only_requests_that_a_quota_concerns_are_metered() -> None:
    clock = ManualClock()
    by_name = {name: api.key for name, api in API_BY_NAME.items()}

    def metered_apis(**quotas: float) -> set[str]:
        _, managers, _ = metered(clock, **quotas)
        return {name for name, key in by_name.items() if key in managers.metered}

    assert metered_apis(producer_byte_rate=1.0) == {"Produce"}
    assert metered_apis(consumer_byte_rate=1.0) == {"Fetch"}
    assert metered_apis(controller_mutation_rate=1.0) == {"CreateTopics", "DeleteTopics", "CreatePartitions"}
    assert metered_apis(request_percentage=1.0) == set(by_name)
