"""Tests that are coroutines: on the event loop that nodes have, or among simulated nodes in virtual time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.runtime.loop import run
from ottla.sim.loop import SimLoop
from tests.support.sim_nodes import SimNodes

Test = Callable[..., Coroutine[Any, Any, None]]


def on_nodes_loop(test: Test) -> Callable[..., None]:
    """Run a test on a loop of the kind that nodes have, uvloop's where there is one."""

    @functools.wraps(test)
    def run_test(*arguments: Any, **named: Any) -> None:
        run(test(*arguments, **named))

    return run_test


def in_virtual_time(seed: int = 1) -> Callable[[Test], Callable[..., None]]:
    """Run a test on the simulator's loop, on which no time passes but what all of it waits for."""

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def run_test(*arguments: Any, **named: Any) -> None:
            SimLoop(seed).run_until_complete(test(*arguments, **named))  # type: ignore[abstract]

        return run_test

    return decorate


def simulated(
    make: Callable[[], SimNodes] = SimNodes, *, booted: bool = True
) -> Callable[[Test], Callable[..., None]]:
    """Run a test in virtual time, with nodes as its first argument, which are ready if `booted`."""

    def decorate(test: Test) -> Callable[..., None]:
        def run_test(*arguments: Any, **named: Any) -> None:
            nodes = make()

            async def life() -> None:
                if booted:
                    nodes.boot()
                    await nodes.ready()
                await test(nodes, *arguments, **named)

            nodes.run(life())

        functools.update_wrapper(run_test, test)
        run_test.__dict__.pop("__wrapped__")
        signature = inspect.signature(test)
        run_test.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(signature.parameters.values())[1:]
        )
        return run_test

    return decorate
