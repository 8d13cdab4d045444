"""Token ids in, token ids out: cache, sampling, the generation loop."""
