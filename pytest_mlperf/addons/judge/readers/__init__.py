"""Read result files of other tools; each module recognises and reads the files of a few tools."""
