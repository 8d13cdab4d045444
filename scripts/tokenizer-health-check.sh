#!/bin/sh
# Written by `bitnet ci-init`; the template is ci/scripts/tokenizer-health-check.sh of bitnet.
# Validate every model and its tokenizer in a folder (MODEL_DIR, ./models), and the cache.
#   tokenizer-health-check.sh [MODEL_DIR]
# Ends with exit code 15 when a model fails, 13 when a file in the cache is damaged.
set -eu

bitnet health --model-dir="${1:-${MODEL_DIR:-models}}"
bitnet cache.verify
