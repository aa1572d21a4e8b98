"""The kernel's own engine and data set, which need no model, files or libraries."""
