#!/bin/sh
# Run a command for every model below models/ (MODEL_DIR), go on after a failure, and end with the
# first exit code that was not 0. What became of each goes to the summary of the job, too.
#   each-model.sh COMMAND [ARGUMENT ...]        the model is added as the last argument
# With SKIPPED, names of pinned files that this run could not fetch, a model without a tokenizer
# is not checked, and the summary says so.
set -u

summary=${GITHUB_STEP_SUMMARY:-/dev/null}
list=$(mktemp)
find "${MODEL_DIR:-models}" -name '*.gguf' -o -name config.json | sed 's,/config\.json$,,' |
    sort > "$list"
if [ ! -s "$list" ]; then
    echo "NOT CHECKED: no model below ${MODEL_DIR:-models}" | tee -a "$summary"
fi
code=0
while read -r model; do
    ended=0
    if [ -n "${SKIPPED:-}" ] && ! bitnet explain-tokenizer "$model" > /dev/null 2>&1 < /dev/null; then
        echo "- NOT CHECKED: $model: its tokenizer needs a token: $SKIPPED" | tee -a "$summary"
        continue
    fi
    "$@" "$model" < /dev/null || ended=$?
    if [ "$ended" -eq 0 ]; then said=passed; else said="FAILED, exit code $ended"; fi
    echo "- $said: $model" | tee -a "$summary"
    if [ "$code" -eq 0 ]; then code=$ended; fi
done < "$list"
rm -f "$list"
exit "$code"
