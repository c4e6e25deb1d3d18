"""The pages of docs/reference say what the code says."""

from __future__ import annotations

import pytest

from tests.support.reference_docs import DIRECTORY, PAGES


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_current(name: str) -> None:
    assert (DIRECTORY / name).read_text() == PAGES[name](), (
        "run `python -m tests.support.reference_docs` and commit it"
    )


def test_there_is_no_other_page() -> None:
    assert {page.name for page in DIRECTORY.glob("*")} == set(PAGES)
