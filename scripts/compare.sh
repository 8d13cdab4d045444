#!/bin/sh
# Written by `bitnet ci-init`; the template is ci/scripts/compare.sh of bitnet.
# Compare a model with REFERENCE (llama.cpp), into reports/, and derive the report's verdict again.
# Folders with safetensors are converted first: the C++ engines read GGUF files. A model that the
# engine is not made for is said to be not checked: `bitnet crossval --references` knows which are.
#   compare.sh MODEL
set -eu

model=$1
reference=${REFERENCE:-llama.cpp}
report=reports/$reference/$(echo "$model" | tr / -)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -d "$model" ]; then
    bitnet convert --model="$model" --output "$work/model.gguf" --type F32 --no-progress
    model=$work/model.gguf
fi
reads=$(bitnet crossval --references --against "$reference" --model="$model")
if [ -z "$reads" ]; then
    mkdir -p reports
    echo "$1: $reference does not read such models" >> reports/not-checked.txt
    echo "NOT CHECKED: $reference does not read such models"
    exit 0
fi
bitnet crossval --model="$model" --against "$reference" --report-dir "$report" --no-progress
bitnet crossval --check "$report/report.json"
