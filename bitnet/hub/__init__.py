"""The only code that opens outgoing connections; only :mod:`bitnet.tasks` calls it."""
