"""`make steady`: tests run many times while their processes are paused, and cores and disk are taken away."""
