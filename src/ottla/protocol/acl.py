"""Operations, resource types, patterns and permissions of access control, with Kafka's numbers.

A number that is not listed is unknown to Kafka as well; 0 stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final


class AclOperation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermissionType(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


# The numbers that have a meaning; members of an enum are equal to them.
RESOURCE_TYPES: Final = frozenset(int(each) for each in AclResourceType)
PATTERN_TYPES: Final = frozenset(int(each) for each in PatternType)
OPERATIONS: Final = frozenset(int(each) for each in AclOperation)
PERMISSION_TYPES: Final = frozenset(int(each) for each in AclPermissionType)

# The name of a literal pattern that matches every resource, and the host that matches every client.
WILDCARD: Final = "*"
# The principal of entries that are for every user.
WILDCARD_PRINCIPAL: Final = "User:*"
# The name of the only resource of type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"

SUPPORTED_OPERATIONS: Final[Mapping[int, tuple[AclOperation, ...]]] = {
    AclResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    AclResourceType.TRANSACTIONAL_ID: (
        AclOperation.DESCRIBE,
        AclOperation.WRITE,
        AclOperation.TWO_PHASE_COMMIT,
    ),
    AclResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    AclResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}


def operation_bits(operations: Iterable[int]) -> int:
    """The bit field of authorized operations that responses carry: bit n stands for operation n."""
    bits = 0
    for operation in operations:
        bits |= 1 << operation
    return bits


def operations_of(bits: int) -> frozenset[AclOperation]:
    """The operations of a number that `operation_bits` made; none if a broker sent none.

    >>> sorted(each.name for each in operations_of(operation_bits([AclOperation.READ, AclOperation.ALTER])))
    ['ALTER', 'READ']
    """
    return frozenset(each for each in AclOperation if bits >= 0 and bits >> each & 1)


def enum_name(kind: type[IntEnum], number: int) -> str:
    """The name of a number as Kafka writes it in messages; UNKNOWN if it has none."""
    try:
        return kind(number).name
    except ValueError:
        return "UNKNOWN"
