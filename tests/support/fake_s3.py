"""A store that speaks as much of S3 as tiered storage needs, and can stop to answer."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "segments"
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class FakeS3:
    """`url` is its endpoint. While it hangs, it takes requests and answers none of them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        # Requests that are not answered, in all.
        self.unanswered = 0
        self.aborted_uploads = 0
        # Parts of an upload from this number on are refused.
        self.first_refused_part: int | None = None
        # The text with which every request is refused, if there is one.
        self.refusal: str | None = None
        self.deleted: list[str] = []
        self._answers = threading.Event()
        self._answers.set()
        self._is_closed = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def hang(self) -> None:
        self._answers.clear()

    def heal(self) -> None:
        self._answers.set()

    def wait_for_answer(self) -> bool:
        """Wait while it hangs; False if it is closed."""
        if not self._answers.is_set():
            self.unanswered += 1
        self._answers.wait()
        return not self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(store: FakeS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _request(self) -> tuple[str, dict[str, list[str]], bytes] | None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not store.wait_for_answer():
                self.close_connection = True
                return None
            parts = urlsplit(self.path)
            if store.refusal is not None:
                self._send(403, store.refusal.encode())
                return None
            if not f"{parts.path}/".startswith(f"/{BUCKET}/"):
                self._send(404, b"<Error><Code>NoSuchBucket</Code></Error>")
                return None
            key = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
            return key, parse_qs(parts.query, keep_blank_values=True), body

        def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_PUT(self) -> None:
            if (request := self._request()) is None:
                return
            key, query, body = request
            tag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
            if "partNumber" in query:
                number = int(query["partNumber"][0])
                if store.first_refused_part is not None and number >= store.first_refused_part:
                    self._send(400, b"<Error><Code>EntityTooSmall</Code></Error>")
                    return
                store.uploads[query["uploadId"][0]][number] = body
            else:
                store.objects[key] = body
            self._send(200, ETag=tag)

        def do_POST(self) -> None:
            if (request := self._request()) is None:
                return
            key, query, body = request
            if "delete" in query:
                keys = re.findall("<Key>(.*?)</Key>", body.decode())
                for each in keys:
                    store.objects.pop(each, None)
                    store.deleted.append(each)
                deleted = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in keys)
                self._send(200, f"<DeleteResult {_NAMESPACE}>{deleted}</DeleteResult>".encode())
                return
            if "uploads" in query:
                upload = f"upload-{len(store.uploads)}"
                store.uploads[upload] = {}
                self._send(
                    200,
                    f"<InitiateMultipartUploadResult {_NAMESPACE}><Bucket>{BUCKET}</Bucket><Key>{key}</Key>"
                    f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode(),
                )
                return
            parts = store.uploads.pop(query["uploadId"][0])
            store.objects[key] = b"".join(parts[number] for number in sorted(parts))
            self._send(
                200,
                f"<CompleteMultipartUploadResult {_NAMESPACE}><Bucket>{BUCKET}</Bucket><Key>{key}</Key>"
                '<ETag>"whole"</ETag></CompleteMultipartUploadResult>'.encode(),
            )

        def do_GET(self) -> None:
            if (request := self._request()) is None:
                return
            key, query, _ = request
            if not key:
                prefix = query.get("prefix", [""])[0]
                found = "".join(
                    f"<Contents><Key>{each}</Key><Size>{len(store.objects[each])}</Size><ETag>x</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                    for each in sorted(store.objects)
                    if each.startswith(prefix)
                )
                name = "ListBucketResult"
                body = f"<{name} {_NAMESPACE}><IsTruncated>false</IsTruncated>{found}</{name}>"
                self._send(200, body.encode())
                return
            data = store.objects.get(key)
            if data is None:
                self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            headers = {"ETag": '"x"', "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
            wanted = self.headers.get("Range")
            if wanted is None:
                self._send(200, data, **headers)
                return
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, len(data))
            self._send(206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data)}", **headers)

        do_HEAD = do_GET

        def do_DELETE(self) -> None:
            if (request := self._request()) is None:
                return
            key, query, _ = request
            if "uploadId" in query:
                store.uploads.pop(query["uploadId"][0], None)
                store.aborted_uploads += 1
            else:
                store.objects.pop(key, None)
            self._send(204)

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

        def log_message(self, *_: object) -> None:
            """The output of the tests is not the place for it."""

    return Handler


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    store = FakeS3()
    try:
        yield store
    finally:
        store.close()


def fake_s3_settings(store: FakeS3, **more: str) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "rsm.config.storage.url": f"s3://{BUCKET}",
        "rsm.config.storage.s3.region": "us-east-1",
        "rsm.config.storage.s3.endpoint.url": store.url,
        "rsm.config.storage.aws.access.key.id": "key",
        "rsm.config.storage.aws.secret.access.key": "secret",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "50",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
