"""Where Spark finds format ``weir`` by itself.

When a session first asks for a data source, Spark imports every module on its path whose name begins with
``pyspark_``, and registers the `DefaultSource` of each. What one of them takes, or breaks, every query of the session
pays for: so this one imports neither Arrow nor the client.
"""

from spark_source.data_source import WeirDataSource as DefaultSource

__all__ = ["DefaultSource"]
