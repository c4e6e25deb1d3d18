"""Lists of schemas are bounded."""

from ottla.registry.registry import answerable
from ottla.registry.stored import StoredSchema


def schema(version: int, size: int) -> StoredSchema:
    return StoredSchema("large", version, version, "AVRO", "x" * size)


def test_a_list_ends_before_its_texts_are_too_long() -> None:
    megabytes = [schema(version, 1 << 20) for version in range(1, 41)]
    assert answerable(megabytes) == megabytes[:16]
    assert answerable(megabytes[16:]) == megabytes[16:32]


def test_a_list_of_ordinary_schemas_is_whole() -> None:
    ordinary = [schema(version, 1_000) for version in range(1, 1_001)]
    assert answerable(ordinary) == ordinary
    assert answerable([]) == []


def test_a_list_has_at_least_one_schema() -> None:
    assert answerable([schema(1, 17 << 20), schema(2, 10)]) == [schema(1, 17 << 20)]
