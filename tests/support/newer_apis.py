"""What Kafka 4.4 has added to the protocol: the broker that tests run, and other implementations of the
protocol, know Kafka 4.3's. The classes of the newest Java client know it all.
"""

from __future__ import annotations

from ottla.protocol.api import API, Api
from ottla.protocol.errors import ErrorCode

# The first version of each API that Kafka 4.3 does not have.
FIRST_OF_KAFKA_4_4 = {18: 5, 28: 6, 42: 3, 88: 1, 89: 1, 93: 0, 94: 0}
# Of no Kafka at all.
OWN_APIS = {key: 0 for key, api in API.items() if not api.is_of_kafka}
FIRST_ERROR_OF_KAFKA_4_4 = ErrorCode.GROUP_DELETION_FAILED


def versions_of_kafka_4_3(api: Api) -> range:
    """The stable versions of an API that Kafka 4.3 serves; none of one that it does not have."""
    return range(api.min_version, (FIRST_OF_KAFKA_4_4 | OWN_APIS).get(api.key, api.max_version + 1))


def is_of_kafka_4_3(api_key: int, version: int) -> bool:
    return version < (FIRST_OF_KAFKA_4_4 | OWN_APIS).get(api_key, version + 1)
