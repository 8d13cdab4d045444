"""The HTTP worker: a request queue in front of one model."""
