"""`ottla users`: list, describe, add and remove."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from ottla.cli.errors import USAGE
from tests.support.command_line import CommandLine


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
    removed = ottla.ok("users", "remove", user, "--mechanism", "SCRAM-SHA-256", "--json").json
    assert removed == {"user": user, "removed": ["SCRAM-SHA-256"], "dry_run": False}
    assert ottla("users", "remove", user, "--mechanism", "SCRAM-SHA-256").status == 1
    ottla.ok("users", "remove", user)
    gone = ottla("users", "describe", user)
    assert gone.status == 1
    assert "does not exist" in gone.err


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
