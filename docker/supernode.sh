#!/bin/sh
# Starts one replica of a scalable SuperNode service. It takes the first node folder that no other replica holds; the
# lock goes with the process.
set -eu
number=0
while [ -d "/nodes/$number" ]; do
    exec 9> "/nodes/$number/claim"
    if flock --nonblock 9; then
        node="/nodes/$number"
        export FEDSKETCH_CACHE="$node/cache"
        set -- --superlink "$SUPERLINK" --node-config "partition-id=$number"
        if [ -n "${INSECURE:-}" ]; then
            echo "NOT PRIVATE: no TLS, no authentication, no policy, no ledger, and keys that everybody knows." >&2
            export FEDSKETCH_SIMULATION=1
            exec fedsketch-node --insecure "$@"
        fi
        export FEDSKETCH_DEVICE="$node/device"
        exec fedsketch-node --root-certificates "$node/ca.crt" --auth-supernode-private-key "$node/auth.key" "$@"
    fi
    number=$((number + 1))
done
echo "All $number node folders are taken: start more with NODES=$((number + 1)) docker compose up -d." >&2
exit 1
