"""How ``bitnet-tiny``, the model inside the package, was made: text in, model out."""
