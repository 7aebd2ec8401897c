#!/bin/sh
# Starts a demo device from its folder /node. One container is this device, and the lock goes with the process.
set -eu
exec 9> /node/claim
flock --nonblock 9 || { echo "Another container is this device." >&2; exit 1; }
export FEDSKETCH_CACHE=/node/cache
set -- --superlink "$SUPERLINK" --node-config "partition-id=$PARTITION"
if [ -n "${INSECURE:-}" ]; then
    echo "NOT PRIVATE: no TLS, no authentication, no policy, no ledger, and keys that everybody knows." >&2
    export FEDSKETCH_SIMULATION=1
    exec fedsketch-node --insecure "$@"
fi
export FEDSKETCH_DEVICE=/node/device
fedsketch-enroll /node/device --roster /roster/roster.json
exec fedsketch-node --root-certificates /node/ca.crt --auth-supernode-private-key /node/auth.key "$@"
