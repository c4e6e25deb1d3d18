"""Credentials of catalogs, which libraries put into their errors, are in no message."""

from __future__ import annotations

import logging

from ottla.tables.secrets import Secrets
from ottla.tables.settings import CatalogSettings
from ottla.tables.worker import TableWorker


def test_a_worker_hides_what_its_catalog_and_registry_must_not_show() -> None:
    catalog = CatalogSettings(
        uri="postgresql://user:pass%40word@127.0.0.1:1/x",
        warehouse="s3://bucket/x",
        properties={"credential": "the-id:the-secret", "s3.secret-access-key": "sesame", "s3.region": "here"},
    )
    secrets = Secrets()
    worker = TableWorker(secrets)
    worker.answer({"op": "configure", "catalog": catalog.to_json()}, b"")
    table = {
        "topic": "t",
        "topic_id": "i",
        "cluster_id": "c",
        "registry_url": "http://me:registry-word@127.0.0.1:1",
    }

    def fail(*_: object) -> None:
        raise RuntimeError("the-id:the-secret, the-secret, pass%40word pass@word sesame registry-word here")

    worker._open = fail  # type: ignore[assignment]
    secrets.learn_url(table["registry_url"])
    answer = worker.answer({"op": "open", "table": table}, b"")
    assert answer == {"error": "RuntimeError: [hidden], [hidden], [hidden] [hidden] [hidden] [hidden] here"}
    record = logging.LogRecord("x", logging.ERROR, "", 0, "no %s", ("sesame",), None)
    assert secrets.filter(record)
    assert record.getMessage() == "no [hidden]"
