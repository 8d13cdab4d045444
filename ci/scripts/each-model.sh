#!/bin/sh
# Run a command for every model below models/ (MODEL_DIR), go on after a failure, and end with the
# first exit code that was not 0. What became of each goes to the summary of the job, too.
#   each-model.sh COMMAND [ARGUMENT ...]        the model is added as the last argument
# Without any model it ends with 19.
# With SKIPPED, names of pinned files that this run could not fetch, a model without a tokenizer
# is not checked, and the summary says so. A model passes when the command left nothing out: where it
# says `NOT CHECKED: what`, the summary says that instead, and what it `CHECKED: what`.
set -u

summary=${GITHUB_STEP_SUMMARY:-/dev/null}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list=$work/list
find -L "${MODEL_DIR:-models}" -name '*.gguf' -o -name config.json -o -name '*.safetensors' |
    sed 's,/config\.json$,,; s,/[^/]*\.safetensors$,,' | sort -u > "$work/found"
while read -r model; do # a folder inside of a model, as 1_Pooling, belongs to it
    [ -e "$model/../modules.json" ] || echo "$model"
done < "$work/found" > "$list"
if [ ! -s "$list" ]; then
    echo "NOT CHECKED: no model below ${MODEL_DIR:-models}" | tee -a "$summary"
    exit 19
fi
code=0
while read -r model; do
    if [ -n "${SKIPPED:-}" ]; then
        ended=0
        bitnet explain-tokenizer "$model" > /dev/null 2>&1 < /dev/null || ended=$?
        if [ "$ended" -eq 19 ]; then # found none; a damaged file ends otherwise, and fails below
            echo "- NOT CHECKED: $model: its tokenizer needs a token: $SKIPPED" | tee -a "$summary"
            continue
        fi
    fi
    echo 1 > "$work/ended"
    {
        "$@" "$model" < /dev/null 2>&1
        echo "$?" > "$work/ended"
    } | tee "$work/said"
    ended=$(cat "$work/ended")
    gaps=$(awk -F 'NOT CHECKED: ' 'NF > 1 {printf "%s%s", sep, $NF; sep = "; "}' "$work/said")
    if [ "$ended" -ne 0 ]; then
        echo "- FAILED, exit code $ended: $model"
    elif [ -n "$gaps" ]; then
        checked=$(sed -n 's/^CHECKED: //p' "$work/said")
        echo "- NOT CHECKED: $model: $gaps${checked:+; checked: $checked}"
    else
        echo "- passed: $model"
    fi | tee -a "$summary"
    if [ "$code" -eq 0 ]; then code=$ended; fi
done < "$list"
exit "$code"
