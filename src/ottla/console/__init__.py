"""The console: a cluster in the browser, beside any Kafka or inside a node."""
