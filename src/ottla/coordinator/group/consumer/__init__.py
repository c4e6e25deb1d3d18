"""The state of a consumer group, its subscriptions and its assignments."""
