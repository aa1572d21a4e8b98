"""Power and energy of a run: sampled, read, doubted."""
