"""Lives of a whole cluster: nodes, clients, what is promised to them, and what is done to them."""
