"""The transformer, a decoder or an encoder, configured by the families."""
