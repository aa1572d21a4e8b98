"""Run cases in child processes under LoadGen, and read their results."""
