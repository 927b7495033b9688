#!/usr/bin/env bash
# For CI: judges deployment files or launch scripts before anything is started; needs no weights and no device.
# `examples/check_deployment.sh FILE...` ends with 1 when one has an error, 2 when one cannot be read.
set -uo pipefail
(($# > 0)) || {
    echo "usage: $0 FILE..." >&2
    exit 2
}
VIVACE=${VIVACE:-vivace}
command -v "$VIVACE" > /dev/null || {
    echo "$VIVACE: no such command; '. .venv/bin/activate' puts it on the PATH, VIVACE=PATH names it" >&2
    exit 127
}
worst=0
for file in "$@"; do
    echo "== $file"
    "$VIVACE" check "$file" --memory
    status=$?
    ((status > worst)) && worst=$status
done
exit $worst
