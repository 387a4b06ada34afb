"""What a scan can read: pure step functions over storage.

A source owns a position in storage and turns what it reads there into Arrow batches, one bounded step
at a time. It knows no task, clock, connection or wire; the push scan and the pull models drive the same
sources and so deliver the same batches.
"""
