"""A node as its users meet it: tools and clients of others, swaps, kills, hostile bytes, full disks."""
