"""Leader epochs: from which offset on each leader wrote, in memory and in `leader-epoch-checkpoint`."""
