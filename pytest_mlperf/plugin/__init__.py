"""Connect the package to pytest: hooks, options, collection, fixture and summary."""
