"""Suite files: what they may say, how they are read, which cases they make."""
