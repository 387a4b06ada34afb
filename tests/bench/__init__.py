"""Tests of the benches' own parts: a measurement that is wrong is worse than none."""
