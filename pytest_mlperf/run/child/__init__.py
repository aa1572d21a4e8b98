"""Child processes: started, watched, heard and ended."""
