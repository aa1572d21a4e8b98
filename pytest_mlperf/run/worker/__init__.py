"""Run the worker: one process that loads an engine and runs LoadGen over it."""
