"""What several tests share: Apache Kafka as an oracle, raw wire clients, comparisons."""
