"""Schemas of a registry, and pipelines: what the console reads from elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from ottla.console.api import pipelines
from ottla.console.api_request import ApiRequest, ConsoleError
from ottla.console.config import ConsoleConfig
from ottla.console.context import ApiContext, ApiHandler, ConsoleServices, WorkLimits
from ottla.console.messages.payload import PayloadDecoder
from ottla.console.messages.topic_schemas import TopicSchemas
from ottla.console.sessions import ConsoleSessions
from ottla.runtime.runtime import Runtime
from ottla.schemas.avro import AvroSchema
from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.registry import SchemaRegistry
from ottla.spark.expectations import ExpectationAction
from ottla.spark.pipelines.progress import Flow, FlowState, PipelineProgress
from ottla.spark.pipelines.run_record import MAX_RUNS, STALE_SECONDS, load_record, load_runs, record_run

ITEM = '{"type":"record","name":"Item","fields":[{"name":"sku","type":"string"}]}'
ORDER = '{"type":"record","name":"Order","fields":[{"name":"item","type":"Item"}]}'
PROTO = "message First { int32 a = 1; } message Second { string b = 1; }"
DOCUMENTS = {
    "/schemas/ids/1": {"schema": ITEM},
    "/schemas/ids/2": {"schema": ORDER, "references": [{"name": "Item", "subject": "it/em", "version": 3}]},
    "/subjects/it%2Fem/versions/3": {"schema": ITEM},
    "/schemas/ids/3": {"schema": PROTO, "schemaType": "PROTOBUF"},
    "/schemas/ids/4": {"schema": '{"type":"object","required":["id"]}', "schemaType": "JSON"},
    "/schemas/ids/5": {"schema": "{", "schemaType": "AVRO"},
}


class _Registry(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str | None]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Registry

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        document = DOCUMENTS.get(self.path)
        body = json.dumps(document or {"error_code": 40403}).encode()
        self.send_response(200 if document else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[_Registry]:
    server = _Registry()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def test_messages_in_the_wire_format_are_decoded_by_the_registry(registry: _Registry) -> None:
    item = AvroSchema(ITEM).encode({"sku": "x"})
    payloads = {
        framed(1, item): ("avro", {"sku": "x"}, None),
        framed(2, item): ("avro", {"item": {"sku": "x"}}, None),
        framed(3, b"\0" + ProtobufSchema(PROTO).encode({"a": 7})): ("protobuf", {"a": 7}, None),
        framed(3, b"\x02\x02" + ProtobufSchema(PROTO, "Second").encode({"b": "hi"})): (
            "protobuf",
            {"b": "hi"},
            None,
        ),
        framed(4, b'{"id": 1}'): ("json-schema", {"id": 1}, None),
        framed(4, b"{}"): ("json-schema", {}, "$ lacks 'id'"),
        framed(1, item + b"rest"): ("hex", None, "not avro of registry id 1"),
        framed(5, b"x"): ("hex", None, "the schema 5 of the registry cannot be used"),
        framed(6, b"x"): ("hex", None, "the registry has no schema 6"),
    }

    async def check() -> None:
        runtime = Runtime.real(pool_workers=2)
        url = f"http://user:pass@127.0.0.1:{registry.server_address[1]}/"
        registry_client = SchemaRegistry(url, runtime.pool, runtime.clock)
        decoder = PayloadDecoder(TopicSchemas(), registry_client, runtime.pool)
        try:
            for _ in range(2):
                for data, (format, document, note) in payloads.items():
                    found = await decoder.decode("t", "value", data)
                    assert found is not None
                    assert found.format == format
                    assert not found.has_document or found.document == document
                    assert (found.note is None) if note is None else note in str(found.note)
        finally:
            runtime.close()

    asyncio.run(check())
    paths = [path for path, _ in registry.asked]
    assert sorted(paths) == sorted({*paths})  # each once, also those that failed
    assert {login for _, login in registry.asked} == {"Basic dXNlcjpwYXNz"}


async def test_a_registry_that_is_down_costs_one_attempt() -> None:
    runtime = Runtime.real(pool_workers=1)
    decoder = PayloadDecoder(
        TopicSchemas(), SchemaRegistry("http://127.0.0.1:1", runtime.pool, runtime.clock), runtime.pool
    )
    try:
        for _ in range(100):
            found = await decoder.decode("t", "value", framed(1, b"x"))
            assert found is not None
            assert "cannot be used" in str(found.note)
    finally:
        runtime.close()


class TestPipelines:
    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        (tmp_path / "spark-pipeline.yml").write_text("name: orders\nstorage: storage\n")
        (tmp_path / ".ottla").mkdir()
        return tmp_path

    def ask(self, project: Path, handle: ApiHandler | None = None, **query: str) -> Any:
        async def run() -> Any:
            runtime = Runtime.real(pool_workers=1)
            config = ConsoleConfig(
                {"bootstrap.servers": "127.0.0.1:1"}, pipelines=(project / "spark-pipeline.yml",)
            )
            services = ConsoleServices(
                runtime, config, PayloadDecoder(TopicSchemas(), None, runtime.pool), None, WorkLimits()
            )
            sessions = ConsoleSessions(runtime, config)
            session = await sessions.find(None)
            assert session is not None
            try:
                chosen = handle or (pipelines.describe_pipeline if query else pipelines.list_pipelines)
                return await chosen(ApiContext(services, session), ApiRequest("GET", "/", query=query))
            finally:
                await sessions.close()
                runtime.close()

        return asyncio.run(run())

    def progress(self) -> PipelineProgress:
        progress = PipelineProgress()
        progress.flows["large"] = Flow("large", FlowState.RUNNING, batches=3, rows=40, lag=5)
        return progress

    def test_a_project_without_a_run_is_unknown(self, project: Path) -> None:
        (found,) = self.ask(project)["items"]
        assert (found["name"], found["state"], found["flows"]) == ("orders", "unknown", 0)

    def test_a_run_leaves_its_progress_and_its_end(self, project: Path) -> None:
        progress = self.progress()
        with record_run(progress, project / ".ottla", "orders", mode="continuous"):
            (found,) = self.ask(project)["items"]
            assert (found["state"], found["rows"], found["lag"], found["mode"]) == (
                "running",
                40,
                5,
                "continuous",
            )
        described = self.ask(project, directory=str(project))
        assert (described["state"], described["flows"][0]["name"]) == ("completed", "large")
        with (
            pytest.raises(OSError, match="disk"),
            record_run(progress, project / ".ottla", "orders", mode="once"),
        ):
            raise OSError("the disk is full")
        (found,) = self.ask(project)["items"]
        assert (found["state"], found["error"]) == ("failed", "the disk is full")
        with (
            pytest.raises(KeyboardInterrupt),
            record_run(progress, project / ".ottla", "orders", mode="once"),
        ):
            raise KeyboardInterrupt
        assert self.ask(project)["items"][0]["state"] == "stopped"

    def test_the_last_runs_are_kept_with_what_they_came_to(self, project: Path) -> None:
        state = project / ".ottla"
        progress = self.progress()
        progress.flows["large"].written = 12
        progress.flows["large"].expectations["positive", ExpectationAction.DROP] = (40, 3)
        with record_run(progress, state, "orders", mode="once"):
            left = (state / "progress.json").read_text()
        (state / "progress.json").write_text(left)  # that of one that was killed right after it
        with (
            pytest.raises(OSError, match="disk"),
            record_run(progress, state, "orders", mode="continuous"),
        ):
            raise OSError("the disk is full " + "x" * 5_000)
        with record_run(PipelineProgress(), state, "orders", mode="repeated"):
            pass  # again and again, with nothing to do
        failed, killed, complete = self.ask(project, directory=str(project))["runs"]
        assert (complete["state"], complete["rows"], complete["rowsOut"], complete["lag"]) == (
            "completed",
            40,
            12,
            5,
        )
        assert (complete["broken"], complete["expectations"]) == (3, {"large: positive": 3})
        assert (killed["state"], killed["error"]) == ("stopped", "the run was killed: it has left no end")
        assert (failed["state"], failed["mode"], len(failed["error"])) == ("failed", "continuous", 500)
        (state / "runs.jsonl").write_text("rubbish\n[]\n{}\n")
        assert load_runs(state) == []
        for _ in range(MAX_RUNS):
            with record_run(progress, state, "orders", mode="once"):
                pass
        assert len((state / "runs.jsonl").read_text().splitlines()) == MAX_RUNS

    def test_a_table_is_looked_at(self, project: Path) -> None:
        table = project / "spark-warehouse" / "orders"
        (table / "day=1").mkdir(parents=True)
        for number, name in enumerate(("part-1.parquet", "day=1/part-0.parquet", "_part-2.parquet")):
            rows = pa.table({"number": list(range(number * 100, number * 100 + 30))})
            parquet.write_table(rows, table / name)
            os.utime(table / name, (number, number))
        asked = {"directory": str(project), "table": "Orders"}
        found = self.ask(project, handle=pipelines.preview_table, **asked)
        assert (found["columns"], found["total"], len(found["rows"])) == (["number"], 30, 20)
        assert found["rows"][0] == ["100"]
        assert self.ask(project, directory=str(project))["tables"] == ["orders"]
        for wrong, problem in (({"table": "none"}, "no table none"), ({"directory": "/etc"}, "not given")):
            with pytest.raises(ConsoleError, match=problem):
                self.ask(project, handle=pipelines.preview_table, **asked | wrong)

    def test_a_killed_run_is_recognized_by_its_age(self, project: Path) -> None:
        state = project / ".ottla"
        with record_run(self.progress(), state, "orders", mode="once"):
            left = json.loads((state / "progress.json").read_text())
        (state / "progress.json").write_text(json.dumps(left))
        soon, later = left["updatedMs"] + 1000, left["updatedMs"] + int(STALE_SECONDS * 1000) + 1
        assert (load_record(state, soon) or {})["state"] == "running"
        assert (load_record(state, later) or {})["state"] == "stopped"

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "flows": 1}'])
    def test_a_file_that_cannot_be_read_is_no_record(self, project: Path, text: str) -> None:
        (project / ".ottla" / "progress.json").write_text(text)
        assert load_record(project / ".ottla", 0) is None

    def test_only_projects_that_were_named_are_read(self, project: Path) -> None:
        with pytest.raises(ConsoleError, match="was not given"):
            self.ask(project, directory="/etc")
