"""The server's limits: ranges and relations."""

from __future__ import annotations

import math

import pytest

from scanner.server.config import ScannerConfig


def test_the_defaults_are_those_of_the_session_model_as_merged() -> None:
    """TTL, sweep, caps and page cap are the published ones."""
    config = ScannerConfig()

    assert (config.session_ttl_s, config.session_sweep_interval_s) == (600, 5)
    assert (config.sessions_per_bucket_max, config.sessions_max) == (8, 200)
    assert config.session_page_bytes_max == 10_000_000


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"block_rows_max": 0}, "block_rows_max must be above 0, but is 0"),
        ({"checkpoint_interval_s": -1.0}, "checkpoint_interval_s must be at least 0, but is -1.0"),
        ({"image_cache_bytes_max": -1}, "image_cache_bytes_max must be at least 0"),
        ({"heartbeat_interval_s": 4000.0}, "heartbeat_interval_s"),
        ({"tail_heartbeat_interval_s": 4000.0}, "tail_heartbeat_interval_s"),
        ({"batch_bytes": 100, "batch_bytes_max": 99}, "batch_bytes .* batch_bytes_max"),
        ({"sessions_per_bucket_max": 201}, "sessions_per_bucket_max .* sessions_max"),
        ({"log_retention_s": math.nan}, "log_retention_s"),
        ({"lease_ttl_s": math.inf, "lease_ttl_max_s": math.inf}, "lease_ttl_s"),
        ({"write_queue_bytes_max": 1000}, "write_decoded_bytes_max .* write_queue_bytes_max"),
        ({"write_decoded_bytes_max": 2**30, "write_queue_bytes_max": 2**30}, "write_decoded_bytes_max"),
        ({"row_bytes_max": 2**30}, "row_bytes_max .* write_decoded_bytes_max"),
        ({"session_ttl_s": 1.0}, "session_sweep_interval_s .* session_ttl_s"),
        ({"scans_max": "5"}, "scans_max must be a whole number, not '5'"),
        ({"scans_max": 5.5}, "scans_max must be a whole number"),
        ({"scans_max": True}, "scans_max must be a whole number"),
        ({"lease_ttl_s": "5"}, "lease_ttl_s must be a number"),
        ({"images": 3}, "images must be one of"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, object], names: str) -> None:
    """A limit out of range, or two that contradict each other, are named."""
    with pytest.raises(ValueError, match=names):
        ScannerConfig(**changes)  # type: ignore[arg-type]
