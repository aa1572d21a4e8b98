"""Provide the commands of the history add-on."""
