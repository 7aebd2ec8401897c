#!/bin/sh
# Makes nodes known to the SuperLink and to each other, by their public keys; what devices elsewhere need for that lies
# in the volumes `trust` and `roster` afterwards.
#   register                 all nodes whose public keys are here
#   register admit NAME      first takes in a device from elsewhere: its auth.key.pub and identity.pub in /incoming
#   register remove NAME     first takes a node out, for good
set -eu
node="/registry/nodes/${2:-}"
case "${1:-}" in
admit)
    mkdir -p "$node"
    cp /incoming/auth.key.pub /incoming/identity.pub "$node/"
    ;;
remove)
    mkdir -p "$FLWR_HOME"
    printf '[superlink.here]\naddress = "superlink:8000"\nroot-certificates = "/trust/ca.crt"\n' \
        > "$FLWR_HOME/config.toml"
    flwr supernode unregister "$(cat "$node/node-id")" here
    rm -r "$node"
    ;;
esac
if [ -z "$(ls /registry/nodes)" ]; then
    echo "There is no node yet: take one in with \`docker compose run --rm -v DIR:/incoming:ro register admit NAME\`."
    exit 0
fi
fedsketch-register /registry --superlink superlink:8000 --root-certificates /trust/ca.crt --roster /roster/roster.json
