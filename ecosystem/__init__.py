"""Programs and frameworks of others on a node: `make ecosystem`. docs/ecosystem.md has what they showed."""
