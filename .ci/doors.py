"""Run every command and check its exit code and output; ``.ci/doors`` calls this.

``.ci/doors`` passes this file to a Python that has only the package installed, on standard input.
The argument is the folder of the helpers of the tests, which write a small model.
"""

import json
import locale
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, sys.argv[1])
from tiny_models import tiny_gguf

TEXT = "Hello é日!"  # letters of the small model's vocabulary
ROUND_TRIP = """
import sys
from bitnet.tokenizer import resolve_tokenizer
from pathlib import Path

text = bytes.fromhex(sys.argv[2]).decode()
tokenizer = resolve_tokenizer(Path(sys.argv[1]))
ids = tokenizer.encode(text, add_special=False)
assert tokenizer.decode(ids) == text, (ids, tokenizer.decode(ids))
"""


def run(*words, code=0, program=("bitnet",)):
    """Standard output of the command *words*, which must exit with *code* and report no bug."""
    done = subprocess.run([*program, *words], capture_output=True, stdin=subprocess.DEVNULL)
    output = done.stdout + done.stderr
    if done.returncode != code or b"Error: internal" in output or b"Traceback" in output:
        text = ascii(output.decode("utf-8", "replace")).replace("\\n", "\n")
        sys.exit(f"{words!a} ended with {done.returncode}, expected {code}:\n{text}")
    return done.stdout


def main():
    """Run the commands in a new folder, with names and texts beyond ASCII."""
    # fsdecode: as arguments of a process have them, also in a locale that lacks the characters.
    model = os.fsdecode("modèle.gguf".encode())
    exported = os.fsdecode("dossier é".encode())
    os.chdir(tempfile.mkdtemp(dir="."))
    tiny_gguf(model)
    version = run("--version").decode()
    assert "(numpy, " in version, version  # the wheel was built without a compiler
    commands = json.loads(run("--list", "--list-format=json"))
    task_lists = [commands, *commands["collections"]]
    names = [task["name"] for entry in task_lists for task in entry["tasks"]]
    assert len(names) > 20, names
    run("--help")
    run("--version", program=[sys.executable, "-m", "bitnet"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pages = list(pool.map(lambda name: run(name, "--help"), names))
    for name, page in zip(names, pages, strict=True):
        typed = "cache clean" if name == "clean-cache" else name.replace(".", " ")
        assert page.startswith(f"Usage: bitnet {typed} ".encode()), (name, page)
    run("exit-codes")
    run("doctor")
    run("doctor", "--report", "--model", model)
    run("inspect-gguf", model)
    json.loads(run("inspect-gguf", model, "--json"))
    run("explain-tokenizer", model)
    run("export-tokenizer", model, "--output", exported)
    run("verify-tokenizer", model, "--against", exported + "/tokenizer.json")
    run("-c", ROUND_TRIP, model, TEXT.encode().hex(), program=[sys.executable])
    run("verify", "--model", model)
    run("run", model, os.fsdecode(TEXT.encode()), "--max-tokens", "2")
    run("models")
    run("infer", "--model", model, "--prompt", os.fsdecode(TEXT.encode()), "--max-tokens", "2")
    run("inspect-gguf", os.fsdecode("né.gguf".encode()), code=19)
    run("no-such-command", code=2)
    encoding = locale.getpreferredencoding()
    print(f"Python {sys.version.split()[0]}, {encoding}: {len(names)} commands", flush=True)


main()
