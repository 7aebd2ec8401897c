#!/usr/bin/env bash
# Checks for real what the network of docker-compose.device.yml promises: a device reaches the server's address through
# its relay, and nothing else: no other address, no other port, not this machine, no name server outside. Prints "ok"
# last, or "skipped: ..." where no engine runs. WHEELS is that of containers.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/system/containers.sh
export COMPOSE_PROJECT_NAME=fedsketch-network FEDSKETCH_IMAGE=fedsketch-check FEDSKETCH_USER=10001:10001
scratch=$(mktemp -d)
chmod 755 "$scratch"
machine=$(docker network inspect bridge --format '{{(index .IPAM.Config 0).Gateway}}')
export SUPERLINK=$machine:18447 DEVICE=$scratch DATA=$scratch
device() { docker compose -f docker-compose.device.yml "$@"; }
python3 -c '
import socket, threading
def listen(port):
    server = socket.create_server(("0.0.0.0", port))
    while True:
        connection, _ = server.accept()
        connection.sendall(b"this is port %d" % port)
        connection.close()
threading.Thread(target=listen, args=(18447,)).start()
listen(18448)' &
listener=$!
trap 'kill $listener; device down --timeout 2 > /dev/null 2>&1 || true; rm -rf "$scratch"' EXIT
mkdir "$scratch/device"

echo "== the image"
device build --quiet
device up --detach --wait relay || fail "the relay did not start"

echo "== from inside"
inside=$(docker network inspect fedsketch-network_inside --format '{{(index .IPAM.Config 0).Gateway}}')
said=$(device run --rm -T --no-deps supernode python - "$machine" "$inside" < tests/system/from_a_device.py) ||
    fail "from the device: $said"
echo "$said"
expected="through the relay: this is port 18447
another port through the relay: 403
another address through the relay: 403
another name through the relay: 403
other words to the relay: 403
the server without the relay: unreachable
this machine: unreachable
this machine on the device's network: unreachable
a name outside: unknown
a way out: none"
[ "$said" = "$expected" ] || fail "that is not what the file promises"
echo ok
