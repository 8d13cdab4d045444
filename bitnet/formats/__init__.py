"""Weight containers: read a file or folder as metadata and named weights."""
