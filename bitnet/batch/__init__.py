"""Many prompts from a file, answered into another; a run that is killed goes on where it was."""
