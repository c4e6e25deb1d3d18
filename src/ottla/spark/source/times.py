"""Which topics have the broker's own times on their records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.spark.source.link import Link

__all__ = ["topics_with_append_time"]

log = logging.getLogger(__name__)

_TOPIC_RESOURCE = 2
_SETTING = "message.timestamp.type"


async def topics_with_append_time(link: Link, topics: Sequence[str], *, timeout_ms: int) -> set[str]:
    if not topics:
        return set()
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[_SETTING]
            )
            for topic in topics
        ]
    )
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            answer = await link.cluster.request_any(request, DescribeConfigsResponse)
    except (KafkaError, TimeoutError) as error:
        log.info("%s of topics is not known, so times are no upper bounds: %s", _SETTING, error)
        return set()
    return {
        result.resource_name
        for result in answer.results
        if not result.error_code
        for entry in result.configs
        if entry.name == _SETTING and entry.value == "LogAppendTime"
    }
