"""The flags of the tests' JVMs: each lives for minutes, and starting it is most of what it costs."""

from __future__ import annotations

from typing import Final

FLAGS: Final = (
    # Neither a second compiler nor a collector with threads pays for itself.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # Nor does verifying the classes of Spark and Scala, a fifth of a driver's start: javac and scalac made them.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
OPTIONS: Final = " ".join(FLAGS)
"""For Spark's configuration."""
