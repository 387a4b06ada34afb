"""The tests; their layout mirrors the packages, and `support` holds what several of them share."""
