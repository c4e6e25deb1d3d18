"""The coordinators of a broker: groups and transactions, markers, verification, producer ids."""
