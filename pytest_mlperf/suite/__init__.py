"""Define the format of suite files, read them, and plan the cases in them."""
