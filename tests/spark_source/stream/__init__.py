"""Tests of `spark_source`; those marked `spark` start a JVM, once."""
