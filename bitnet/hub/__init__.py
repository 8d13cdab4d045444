"""Outgoing connections: no other code opens any, and only :mod:`bitnet.tasks` calls it."""
