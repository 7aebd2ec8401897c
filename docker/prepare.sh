#!/bin/sh
# Makes what the other services mount: certificates, folders of the demo devices, and the secret that ServerApp and
# SuperLink share. Keeps what is there.
set -eu
umask 077
case "$NODES" in
"") nodes=3 ;;
0) nodes=0 ;;
*)
    echo "NODES=0 starts no demo devices; without NODES there are three." >&2
    exit 1
    ;;
esac
for name in $SERVER_NAMES; do
    set -- "$@" --name "$name"
done
fedsketch-certs /certs --superlink-name superlink --nodes "$nodes" --policy /policy.toml --data "$DEMO_DATA" "$@"
cp /certs/ca.crt /trust/ca.crt
rm -f /trust/roster.json # of earlier versions; it is in /roster now
number=0
while [ "$number" -lt "$nodes" ]; do
    mkdir -p "/registry/nodes/$number"
    cp "/certs/nodes/$number/auth.key.pub" "/certs/nodes/$number/identity.pub" "/registry/nodes/$number/"
    number=$((number + 1))
done
test -s /superexec/secret || head -c 32 /dev/urandom > /superexec/secret
