"""Provide the commands of the official add-on."""
