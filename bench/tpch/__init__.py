"""TPC-H in Spark: its data as tables of weir, its queries as SQL, and the answers that Parquet gives."""
