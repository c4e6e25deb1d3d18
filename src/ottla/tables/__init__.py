"""Topics as Apache Iceberg tables: what is written, how it is committed, and how it is kept in order."""
