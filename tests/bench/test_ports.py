"""Ports of the loopback interface for processes that have to be told which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.harness import ports

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("given_away", "elsewhere"),
    [
        ("10100\t65535", range(10_000, 10_100)),
        ("1024\t65000", range(65_001, 65_536)),
        ("1024\t65535", ports._ALL),
    ],
)
def test_the_kernel_gives_it_to_nobody_if_it_leaves_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_away: str, elsewhere: range
) -> None:
    """Many machines let connections have all ports from 1024 on: there are as many for us, then."""
    path = tmp_path / "ip_local_port_range"
    path.write_text(f"{given_away}\n")
    monkeypatch.setattr(ports, "_GIVEN_AWAY", path)
    found = {ports.free_port() for _ in range(20)}
    assert found <= set(elsewhere)
    assert len(found) > 1
