"""A conversion as the command does it."""

from bitnet.convert.run import plan_conversion


def convert(source, output, options):
    """Write the model at *source* as the GGUF file *output*; what is refused is refused before."""
    plan = plan_conversion(source, options)
    plan.check()
    return plan.write(output)
