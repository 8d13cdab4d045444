"""The HTTP worker: requests in, a queue, one model, answers out."""
