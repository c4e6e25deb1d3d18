"""Patterns are RE2's; where its library is missing they are refused, and say what to install."""

from __future__ import annotations

import sys

import pytest

from ottla.coordinator.group.consumer.subscriptions import check_regex
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.re2_syntax import compile_re2


def test_patterns_are_of_re2() -> None:
    assert compile_re2("orders-[0-9]+").fullmatch("orders-7") is not None
    with pytest.raises(ValueError, match="invalid perl operator"):
        compile_re2("(?=orders)")


def test_without_the_library_a_pattern_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(KafkaError, match="lacks the package google-re2") as refused:
        check_regex("a pattern that was not compiled before")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
