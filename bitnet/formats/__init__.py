"""Weight containers: a file or folder becomes metadata and named weights."""
