"""Run cases in child processes under LoadGen, and read what they left."""
