"""The sheet of a model: what its file is, and what it needs to run here."""
