#!/bin/sh
# Written by `bitnet ci-init`; the template is ci/scripts/cleanup-tokenizer-cache.sh of bitnet.
# Remove tokenizers that were not used for MAX_AGE_DAYS (30) and are not among the KEEP (10) most
# recently used. For cron, every Sunday at two: 0 2 * * 0 cleanup-tokenizer-cache.sh
set -eu
exec bitnet clean-cache --tokenizers-only --older-than "${MAX_AGE_DAYS:-30}d" \
    --keep "${KEEP:-10}" --yes "$@"
