"""Judge runs and scores by rules without I/O: from numbers to verdicts."""
