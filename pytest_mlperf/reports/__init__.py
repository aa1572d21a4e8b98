"""Texts and files made from results."""
