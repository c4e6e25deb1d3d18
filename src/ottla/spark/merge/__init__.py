"""Tables that merge: changes by key in a pipeline, one row for each key in an Iceberg table."""
