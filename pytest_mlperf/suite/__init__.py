"""Suite files: their format, how they are read, and the cases that they define."""
