"""Build quantised checkpoints once, before the runs that load them."""
