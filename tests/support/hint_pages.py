"""Commands in texts of the program that :mod:`hint_cases` does not have.

``EXTRAS`` has hints to install an extra, which are followed where packages can be installed.
``PAGES`` has commands that no test follows, and the reason: they are in help texts, or a test
cannot provoke them.
"""

from hint_setups import COMMIT, MODEL

# By extra: a command that fails without it; the hint installs the extra.
EXTRAS = {
    "structured": "bitnet infer bitnet-tiny --prompt a --regex '[a-z]+' --max-tokens 3",
    "serve": "timeout -s INT 30 bitnet serve bitnet-tiny --port 0",
    "otel": "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:9 "
    "timeout -s INT 30 bitnet serve bitnet-tiny --port 0",
    "signing": "openssl ecparam -name prime256v1 -genkey -noout -out key.pem && "
    "bitnet attest bitnet-tiny --bundle a.json --key key.pem",
    "ci": f"test -d .github || bitnet ci-init --from git+https://{COMMIT} >&2; bitnet ci-lint",
    "crossval": f"bitnet crossval {MODEL} --against llama.cpp --max-positions 4 --greedy 1",
    "crossval-ternary": "bitnet crossval bitnet-tiny --against ik_llama.cpp --max-positions 4",
    "ray": 'printf \'{"prompt": "a"}\\n\' >a.jsonl; '
    "bitnet batch --model bitnet-tiny --input a.jsonl --output b.jsonl --engine ray",
}
# Commands that no error names, and those that no test can provoke in every door, which
# :mod:`following` defines.
PAGES = {
    'run smollm2-135m "Why is the sky blue?"': "an example in the help",
    "completion --help": "a line of the help",
    "serve": "runs until it is stopped: tests/commands/test_launch.py",
    "{word} COMMAND [--options]": "usage in the help",
    "{command.command_words}": "usage in the help",
    "help network": "a line of the help",
    "cache clean": "needs a damaged decoder in the cache: tests/tokenizer/test_load.py",
    "cache clean --models --dry-run": "needs a full disk: tests/commands/test_provisioning.py",
    "doctor --report": "needs a fault of ours: tests/commands/test_program.py",
    "plan {shell_quote(path)}": "needs a machine without memory",
    "plan {shell_quote(checkpoint.path)}": "needs a machine without memory",
    "compat-check MODEL": "of the Python API, where no command line is",
    "inspect-gguf {shell_quote(gguf.path)}": "of the Python API",
    "run {shell_quote(name)}": "the last line of `create`: tests/commands/test_presets.py",
    "rank --help": "needs a reranker: tests/runtime/test_ranking.py",
    "classify --help": "needs a classifier: tests/runtime/test_ranking.py",
    "show {shell_quote(self.path)}": (
        "needs strange settings: tests/formats/test_generation_keys.py"
    ),
}
