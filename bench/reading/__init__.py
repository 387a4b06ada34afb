"""What reading costs in Spark: a source that costs nothing, and what each process spends."""
