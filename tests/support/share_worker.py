"""A member of a share group with a session on one partition of one broker, request by request."""

from __future__ import annotations

from typing import Any

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_acknowledge as acknowledging
from ottla.protocol.messages import share_fetch as fetching
from ottla.records.batch import iter_batches, read_records
from tests.support.wire import WireClient

ACCEPT, RELEASE = 1, 2
WAIT_MS = 30_000


class ShareWorker:
    def __init__(self, client: WireClient, group: str, topic_id: bytes, name: str = "worker") -> None:
        self.client = client
        self.group = group
        self.topic_id = topic_id
        self.name = name
        self.epoch = 0

    def fetch(
        self, *acknowledged: tuple[int, int, int], max_wait_ms: int = WAIT_MS, **options: Any
    ) -> fetching.ShareFetchResponse:
        request = fetching.ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_records=500,
            batch_size=500,
            **options,
        )
        if self.epoch == 0 or acknowledged:
            batches = [
                fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[type])
                for first, last, type in acknowledged
            ]
            request.topics = [
                fetching.FetchTopic(
                    topic_id=self.topic_id,
                    partitions=[fetching.FetchPartition(partition_index=0, acknowledgement_batches=batches)],
                )
            ]
        self.epoch += 1
        return self.client.get(request, 2, fetching.ShareFetchResponse)

    def take(self, *acknowledged: tuple[int, int, int], **options: Any) -> list[tuple[int, str]]:
        """The offsets and values that were acquired; whatever else the response has does not count."""
        response = self.fetch(*acknowledged, **options)
        for topic in response.responses:
            for part in topic.partitions:
                assert part.error_code == part.acknowledge_error_code == 0, part
        return self._taken(response)

    def try_take(self) -> list[tuple[int, str]]:
        """As `take`, for less time; a partition with an error has nothing."""
        return self._taken(self.fetch(max_wait_ms=WAIT_MS // 10))

    def _taken(self, response: fetching.ShareFetchResponse) -> list[tuple[int, str]]:
        assert response.error_code == 0, response
        taken = []
        for topic in response.responses:
            for part in topic.partitions:
                own = {
                    offset
                    for each in part.acquired_records
                    for offset in range(each.first_offset, each.last_offset + 1)
                }
                for position, header in iter_batches(part.records):
                    if not header.is_control:
                        taken += [
                            (record.offset, (record.value or b"").decode())
                            for record in read_records(part.records, position)
                            if record.offset in own
                        ]
        return taken

    def acknowledge(self, first: int, last: int, type: int) -> ErrorCode:
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch,
            topics=[
                acknowledging.AcknowledgeTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        acknowledging.AcknowledgePartition(
                            partition_index=0,
                            acknowledgement_batches=[
                                acknowledging.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=[type]
                                )
                            ],
                        )
                    ],
                )
            ],
        )
        self.epoch += 1
        response = self.client.get(request, 2, acknowledging.ShareAcknowledgeResponse)
        assert response.error_code == 0, response
        return ErrorCode(response.responses[0].partitions[0].error_code)
