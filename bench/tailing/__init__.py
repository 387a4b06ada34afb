"""Tails that go on while their server is killed, and what they fold to."""
