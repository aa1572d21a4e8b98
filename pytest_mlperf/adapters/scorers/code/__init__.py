"""Extract the programs that a model wrote, and run them in a sandbox."""
