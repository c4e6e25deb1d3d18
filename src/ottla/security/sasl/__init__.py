"""SASL: the mechanisms, each with a server's and a client's side, and the exchange that carries them."""
