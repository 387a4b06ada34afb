"""What is known of the columnar images of buckets: the server tells it, and the client hands it out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInfo:
    """A columnar image of a bucket, which whole scans read instead of its rows."""

    bucket: int
    """Its number, from 0."""
    log_offset: int
    """It shows the changes with a smaller offset."""
    log_behind: int
    """Changes of the bucket since then."""
    rows: int
    """In the image."""
    disk_bytes: int
    """Length of its file, in bytes."""
    memory_bytes: int
    """What it and its delta take of the server's memory while no scan reads it, in bytes, about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageState:
    """Whether a bucket has a columnar image, and why."""

    bucket: int
    """Its number, from 0."""
    image: ImageInfo | None
    """None: it has none."""
    why: str
    """Why it has one or none, and when one is made by itself: a phrase for people. Empty: the server is older."""
