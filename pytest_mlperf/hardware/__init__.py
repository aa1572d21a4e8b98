"""Detect, sample and control the hardware of this machine."""
