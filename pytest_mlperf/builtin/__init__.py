"""The engine and the data set that the kernel has itself: no model, no files, no library."""
