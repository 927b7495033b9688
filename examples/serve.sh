#!/usr/bin/env bash
# Starts a server as a service would: `examples/serve.sh [flags of vivace serve]`.
# PORT, KEY_FILE and VIVACE can be set. SIGTERM lets running requests finish.
set -euo pipefail
PORT=${PORT:-30000}
KEY_FILE=${KEY_FILE:-$HOME/.config/vivace/keys}
VIVACE=${VIVACE:-vivace}
command -v "$VIVACE" > /dev/null || {
    echo "$VIVACE: no such command; '. .venv/bin/activate' puts it on the PATH, VIVACE=PATH names it" >&2
    exit 127
}

if [[ ! -e $KEY_FILE ]]; then # one key per line, each of another client
    mkdir -p "$(dirname "$KEY_FILE")"
    (umask 077 && head -c 24 /dev/urandom | base64 | tr -d '+/=' > "$KEY_FILE")
    echo "made a key: $KEY_FILE" >&2
fi

# exec: the service manager's signals reach the supervisor itself
exec "$VIVACE" serve --host 127.0.0.1 --port "$PORT" --api-key-file "$KEY_FILE" \
    --enable-metrics --max-queued-requests 256 "$@"
