#!/bin/sh
# Written by `bitnet ci-init`; the template is ci/scripts/parity_smoke.sh of bitnet.
# Whether a model is whole, has its own tokenizer, runs, and where an engine to compare with is
# installed (the extra `crossval`), computes the same. Without one it does not pass: its output says
# what was CHECKED and what was NOT CHECKED.
#   ./scripts/parity_smoke.sh                   the model of this program: no download, seconds
#   ./scripts/parity_smoke.sh models/model.gguf [models/tokenizer.json]
# Ends with the exit code of the first step that fails (bitnet exit-codes).
set -eu

if [ $# -gt 2 ]; then
    echo "usage: $0 [MODEL [TOKENIZER]]" >&2
    exit 2
fi

model=${1:-bitnet-tiny}
if [ $# -eq 2 ]; then
    set -- --tokenizer "$2"
else
    set --
fi

bitnet verify --model="$model" "$@"
bitnet infer --model="$model" "$@" --prompt "The capital of France is" --max-tokens 4 --no-progress
echo "CHECKED: the file, its tokenizer, a run of it"
exec bitnet crossval --model="$model" "$@" --max-positions 64 --greedy 8 --allow-missing
