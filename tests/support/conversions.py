"""A conversion as the command does it."""

from bitnet.convert.run import plan_conversion


def convert(source, output, options):
    """Write the model at *source* as the GGUF file *output*."""
    return plan_conversion(source, options).write(output)
