"""The metadata image: immutable entities, the image that holds them, and deltas between images."""
