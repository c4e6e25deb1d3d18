"""`ottla users`: list, describe, add and remove."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from ottla.cli.errors import USAGE
from tests.support.command_line import CommandLine


@pytest.mark.witness
def test_users_come_and_go(ottla: CommandLine, tmp_path: Path) -> None:
    user = f"u-{uuid4().hex}"
    file = tmp_path / "password"
    file.write_text("a secret\n")
    added = ottla.ok("users", "add", user, "--password-file", str(file))
    assert added.out == f"{user} can log in with SCRAM-SHA-512\n"
    ottla.ok(
        *("users", "add", user, "--mechanism", "SCRAM-SHA-256", "--iterations", "8192"),
        *("--password-file", "-"),
        stdin="another\n",
    )
    assert ottla.ok("users", "describe", user, "--json").json == [
        {"user": user, "mechanisms": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}}
    ]
    rows = [row for row in ottla.ok("users", "list").rows if row[0] == user]
    assert rows == [[user, "SCRAM-SHA-256", "8192"], [user, "SCRAM-SHA-512", "4096"]]
    would = ottla.ok("users", "remove", user, "--mechanism", "SCRAM-SHA-256", "--dry-run").out
    assert would == f"would remove SCRAM-SHA-256 of {user}\n"
    removed = ottla.ok("users", "remove", user, "--mechanism", "SCRAM-SHA-256", "--yes", "--json").json
    assert removed == {"user": user, "removed": ["SCRAM-SHA-256"], "dry_run": False}
    assert ottla("users", "remove", user, "--mechanism", "SCRAM-SHA-256").status == 1
    asked = ottla("users", "remove", user)  # there is no terminal to ask
    assert (asked.status, asked.err) == (
        1,
        f"ottla: Remove SCRAM-SHA-512 of {user}: this cannot be undone; use --yes to do it without asking\n",
    )
    again = ottla.ok("users", "add", user, "--password-file", "-", stdin="other\n").out
    assert again == f"{user} can log in with SCRAM-SHA-512; the password was replaced\n"
    ottla.ok("users", "remove", user, "--yes")
    for act in (("describe",), ("remove", "--yes")):
        gone = ottla("users", *act, user)
        assert (gone.status, gone.err.startswith(f"ottla: user {user} does not exist")) == (1, True)


def test_a_password_is_needed_and_never_shown(ottla: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\nhunter3\n")
    for arguments in (
        ("users", "add", "carol"),
        ("users", "add", "carol", "--password-file", str(file)),
        ("users", "add", "carol", "--password-file", str(tmp_path / "none")),
        ("users", "add", "carol", "--password-file", "-"),
    ):
        ended = ottla(*arguments)
        assert ended.status == USAGE, arguments
        assert "hunter" not in ended.err
