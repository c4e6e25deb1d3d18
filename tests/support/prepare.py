"""Fetch and build what tests run beside Ottla, once per checkout: `python -m tests.support.prepare`.

Maven brings the jars of Apache Kafka, Go compiles a store and a client. Tests do the same when they need it,
but there it counts against their time. What the machine cannot do is left out: the tests say so.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.support import franz_go, java_startup, kafka_libs, s3_server


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(_fetch_jars), pool.submit(_compile)]:
            each.result()


def _fetch_jars() -> None:
    if kafka_libs.missing_requirement() is None:
        for bundle in kafka_libs.BUNDLES:
            _attempt(f"the jars of {bundle.name}", partial(kafka_libs.classpath, bundle))
        _attempt("an archive of Kafka's classes", partial(java_startup.archive_options, kafka_libs.BROKER))


def _compile() -> None:
    _attempt("an S3 server", s3_server.program)
    _attempt("a client of franz-go", franz_go.program)
    _attempt("its registry client", partial(franz_go.program, franz_go.REGISTRY_SOURCE))


def _attempt(what: str, make: Callable[[], object]) -> None:
    """The test that needs it tries again, and reports what is wrong."""
    try:
        make()
    except Exception as error:
        print(f"{what}: {error}")


if __name__ == "__main__":
    main()
