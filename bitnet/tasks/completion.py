"""``inv completion``."""

from __future__ import annotations

from bitnet.tasks.declare import task


@task(
    group="Check",
    example="bitnet completion bash > bitnet.bash",
    positional=["shell"],
    choices={"shell": ("bash", "zsh", "fish")},
    help={"shell": "for which shell: bash, zsh or fish"},
)
def completion(c, shell=None):
    """Print what completes commands, options and values by tab.

    A line for ~/.bashrc: `source <(bitnet completion bash)`; for ~/.zshrc, below compinit:
    `source <(bitnet completion zsh)`. Fish reads ~/.config/fish/completions/bitnet.fish: write it
    there. The script has the commands, options, encodings and sources of this version, and finds
    the models in the cache and GGUF files itself: the tab key starts no program of ours.
    """
    from bitnet.hub.named import names
    from bitnet.tasks import load
    from bitnet.tasks.shells import script

    print(script(shell, load(), names()), end="")
