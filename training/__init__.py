"""Training of ``bitnet-tiny``, the model inside the package: text in, model out."""
