"""The pytest shell: hooks, options, collection, the fixture, the last word of a session."""
