"""Tests that run Apache Kafka or its tools beside Ottla; all are marked `kafka`."""
