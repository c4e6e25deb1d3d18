"""What happens before a request is understood: ApiVersions, unknown versions, frames that are no requests."""

from __future__ import annotations

import struct

from ottla.protocol.api import API
from ottla.protocol.headers import read_response
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.kafka.scripts.kit import script
from tests.support.differential import Session
from tests.support.wire import CLOSED


@script
def api_versions(session: Session) -> None:
    for version in session.versions(ApiVersionsRequest):
        named = ApiVersionsRequest(client_software_name="a-client", client_software_version="1.0-rc.2")
        session.ask("with a name", named, version)
        session.ask("without a name", ApiVersionsRequest(), version)
    for name, number in (("bad name", "1"), ("-a", "1"), ("a-", "1"), ("a", "1 2"), ("a.b_c", "1")):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=number)
        session.ask(f"client {name!r} {number!r}", request)


@script
def api_versions_of_the_future(session: Session) -> None:
    """A version that the broker does not know is answered in version 0, whatever the body."""
    for version in (6, 7, 127, 32767):
        for body in (b"", b"\x00", b"\xff" * 40):
            header = struct.pack(">hhih4s", 18, version, 77, 4, b"wire")
            session.client.send_frame(header + b"\x00" + body)
            frame = session.client.receive_frame()
            if frame is None:
                session.note(f"version {version}, {len(body)} bytes", 0, CLOSED)
            else:
                correlation_id, answer = read_response(API[ApiVersionsRequest.API_KEY], 0, frame)
                assert correlation_id == 77
                assert isinstance(answer, ApiVersionsResponse)
                session.note(f"version {version}, {len(body)} bytes", 0, answer)


@script
def requests_that_do_not_exist(session: Session) -> None:
    """Unknown keys, versions outside the range and requests for controllers only end the connection."""
    keys_and_versions = [(key, 0) for key in (4, 5, 6, 7, 95, 999, -1)]
    for api in API.values():
        if api.key == ApiVersionsRequest.API_KEY or not api.is_of_kafka:
            continue
        keys_and_versions += [(api.key, api.min_version - 1), (api.key, api.last_version + 1)]
    keys_and_versions += [(0, version) for version in range(3)]
    keys_and_versions += [(key, 0) for key in (52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82)]
    for key, version in keys_and_versions:
        session.client.send_frame(struct.pack(">hhih4s", key, version, 1, 4, b"wire") + bytes(16))
        frame = session.client.receive_frame()
        assert frame is None, f"API {key} version {version} was answered by {frame!r}"
        session.note(f"API {key}", version, CLOSED)


@script
def frames_that_are_no_requests(session: Session) -> None:
    complete = ApiVersionsRequest().encode(0)
    header = struct.pack(">hhih4s", 18, 0, 1, 4, b"wire")
    frames = {
        "empty frame": struct.pack(">i", 0),
        "negative size": struct.pack(">i", -1),
        "size over the limit": struct.pack(">i", 104_857_601) + bytes(64),
        "half a header": struct.pack(">i", 3) + b"\x00\x12\x00",
        "client id longer than the frame": struct.pack(">ihhih", 10, 18, 0, 1, 50),
        "body cut off": struct.pack(">i", 15) + struct.pack(">hhih4sb", 3, 8, 1, 4, b"wire", 0),
        "array longer than the frame": struct.pack(">i", 18)
        + struct.pack(">hhih4si", 3, 1, 1, 4, b"wire", 9999),
        "bytes left over": struct.pack(">i", len(header) + 5) + header + complete + b"extra",
        "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a TLS hello": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    }
    for label, data in frames.items():
        session.client.send_bytes(data)
        frame = session.client.receive_frame()
        if frame is None:
            session.note(label, 0, CLOSED)
        else:
            session.note(label, 0, read_response(API[18], 0, frame)[1])


@script
def headers_of_requests(session: Session) -> None:
    """A null client id is fine, and unknown tagged fields are skipped."""
    tagged = b"\x01\x63\x02\xaa\xbb"
    session.client.send_frame(struct.pack(">hhih", 18, 3, 5, -1) + tagged + b"\x02a\x021" + b"\x00")
    frame = session.client.receive_frame()
    assert frame is not None
    session.note("unknown tag in the header", 3, read_response(API[18], 3, frame)[1])
    session.client.send_frame(struct.pack(">hhih", 18, 3, 5, -1) + b"\x00" + b"\x02a\x021" + tagged)
    frame = session.client.receive_frame()
    assert frame is not None
    session.note("unknown tag in the body", 3, read_response(API[18], 3, frame)[1])


@script
def requests_in_flight(session: Session) -> None:
    """Requests of one connection are answered in the order in which they came."""
    requests = [
        MetadataRequest(
            topics=[MetadataRequestTopic(name=f"no-such-topic-{index}")], allow_auto_topic_creation=False
        )
        for index in range(20)
    ]
    ids = [session.client.send(request, 4 + index % 10) for index, request in enumerate(requests)]
    for index, correlation_id in enumerate(ids):
        frame = session.client.receive_frame()
        assert frame is not None
        answered_id, answer = read_response(API[3], 4 + index % 10, frame)
        assert answered_id == correlation_id
        session.note(f"request {index}", 4 + index % 10, answer)
