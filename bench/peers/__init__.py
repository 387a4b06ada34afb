"""What weir is measured beside: the same rows by Arrow Flight and grpcio, from Parquet and by DuckDB."""
