"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

import urllib.request
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

_ANSWER_S: Final = 30.0


def labelled(metrics_port: int, metric: str, label: str) -> dict[str, float]:
    """Values of a server's metric by one of its labels; without those that are 0.

    Args:
        metrics_port: Of `weir serve --metrics-port`.
        metric: Its whole name, as in `weir_scans_read_total`.
        label: Name of the label.

    Raises:
        OSError: Nobody answers.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=_ANSWER_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [each for family in families for each in family.samples if each.name == metric]
    return {each.labels[label]: each.value for each in samples if each.value}
