#!/bin/sh
# Makes what the other services mount: certificates, node folders, and the secret that ServerApp and SuperLink share.
# Keeps what is there.
set -eu
umask 077
for name in $SERVER_NAMES; do
    set -- "$@" --name "$name"
done
fedsketch-certs /certs --nodes "$NODES" --policy /policy.toml --data "$DEMO_DATA" "$@"
cp /certs/ca.crt /trust/ca.crt
test -s /superexec/secret || head -c 32 /dev/urandom > /superexec/secret
