#!/bin/sh
# Run a command for every model below models/ (MODEL_DIR), go on after a failure, and end with the
# first exit code that was not 0. What became of each goes to the summary of the job, too.
#   each-model.sh COMMAND [ARGUMENT ...]        the model is added as the last argument
# `bitnet health --list` finds the models, also damaged ones. Without any it ends with 19.
# With SKIPPED, names of pinned files that this run could not fetch, a model without a tokenizer
# is not checked, and the summary says so. A model passes when the command left nothing out: where it
# says `NOT CHECKED: what`, the summary says that instead, and what it `CHECKED: what`.
set -u

summary=${GITHUB_STEP_SUMMARY:-/dev/null}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list=$work/list
code=0
bitnet health --list --model-dir="${MODEL_DIR:-models}" > "$list" || code=$?
if [ "$code" -ne 0 ]; then
    echo "NOT CHECKED: no list of the models below ${MODEL_DIR:-models}" | tee -a "$summary"
    exit "$code"
fi
while IFS= read -r model; do
    if [ -n "${SKIPPED:-}" ]; then
        ended=0
        bitnet explain-tokenizer --model="$model" > /dev/null 2>&1 < /dev/null || ended=$?
        # 19 is any file that is missing; a model without a tokenizer is whole otherwise.
        if [ "$ended" -eq 19 ] &&
            bitnet verify --allow-mock --model="$model" > /dev/null 2>&1 < /dev/null; then
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
    gaps=
    checked=
    # Read by the shell itself: where another program is missing, a gap would look like none.
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        *'NOT CHECKED: '*) gaps=${gaps:+$gaps; }${line##*NOT CHECKED: } ;;
        'CHECKED: '*) checked=${checked:+$checked; }${line#CHECKED: } ;;
        esac
    done < "$work/said"
    if [ "$ended" -ne 0 ]; then
        echo "- FAILED, exit code $ended: $model"
    elif [ -n "$gaps" ]; then
        echo "- NOT CHECKED: $model: $gaps${checked:+; checked: $checked}"
    else
        echo "- passed: $model"
    fi | tee -a "$summary"
    if [ "$code" -eq 0 ]; then code=$ended; fi
done < "$list"
exit "$code"
