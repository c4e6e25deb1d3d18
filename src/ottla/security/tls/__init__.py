"""Encryption and certificates: settings, key material and the contexts that are made of them."""
