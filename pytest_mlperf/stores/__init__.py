"""Read and write the files that outlast a session: baselines, results, caches."""
