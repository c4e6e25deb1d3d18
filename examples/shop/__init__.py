"""The online shop of the demo: its events, its pipeline on Spark, and the report that counts."""
