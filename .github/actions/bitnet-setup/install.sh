#!/bin/sh
# Written by `bitnet ci-init`; the template is ci/github/bitnet-setup/install.sh of bitnet.
# Install bitnet as .github/bitnet says: what it needs by version and SHA-256, and the program itself
# from the source in source.txt: a commit of a repository (git+https://HOST/OWNER/REPO@COMMIT), or a
# folder or a wheel of this project. Nothing is taken by the name of this program from an index.
#   install.sh [LOCK]        LOCK: name of the lock file, requirements by default
set -eu

folder=.github/bitnet
source=$(grep -v '^#' "$folder/source.txt")
case $source in
git+https://*@*)
    commit=${source##*@}
    if [ "${#commit}" -ne 40 ] || [ -n "$(printf %s "$commit" | tr -d 0-9a-f)" ]; then
        echo "::error::$folder/source.txt: $source does not end in @ and a commit of 40 digits"
        exit 2
    fi
    ;;
*)
    if [ ! -e "$source" ]; then
        echo "::error::$folder/source.txt: no folder and no wheel $source in this project"
        exit 2
    fi
    source=./$source # a path, and not a name that an index could answer to
    ;;
esac

python -I -m pip install --quiet --require-hashes --only-binary :all: \
    --requirement "$folder/${1:-requirements}.txt"
# Built from what was just installed: no other build tool is fetched.
wheels=$(mktemp -d)
case $source in
*.whl) cp "$source" "$wheels" ;;
*)
    python -I -m pip wheel --quiet --no-deps --no-index --no-build-isolation \
        --wheel-dir "$wheels" "$source"
    ;;
esac
python -I -m pip install --quiet --no-deps --no-index --force-reinstall "$wheels"/*.whl
rm -rf "$wheels"
