"""`make demo`: the flights of 2013, pushed and pulled into Spark."""
