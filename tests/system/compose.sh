#!/usr/bin/env bash
# Checks the containers for real: the files are clean, the image builds, three nodes train over TLS, the model is
# written, a device reaches nothing but the gate, and three devices that join by docs/how-to/deploy.md train on their
# own data, before and after its operations. Prints "ok" last, or "skipped: ..." where no engine runs. Leaves nothing
# behind but the image.
# WHEELS is that of containers.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/system/containers.sh
export COMPOSE_PROJECT_NAME=fedsketch-check FEDSKETCH_IMAGE=fedsketch-check FEDSKETCH_LISTEN=127.0.0.1:18443
unset NODES SERVER_NAMES POLICY TEST_DATA
scratch=$(mktemp -d)
device() { # NAME, then what compose shall do for that device
    local name=$1
    shift
    DEVICE=$scratch/$name DATA=$scratch/$name-data FEDSKETCH_DATA=/data/train.npz \
        FEDSKETCH_USER=$(id -u):$(id -g) SUPERLINK=$reached \
        docker compose -p "fedsketch-check-$name" -f docker-compose.device.yml "$@"
}
clean_up() {
    for name in a b c; do device "$name" down --timeout 5 > /dev/null 2>&1 || true; done
    docker compose --profile command down --volumes --timeout 5 > /dev/null 2>&1 || true
    rm -rf "$scratch"
}
# This machine, seen from a container.
reached=$(docker network inspect bridge --format '{{(index .IPAM.Config 0).Gateway}}'):18443
trap clean_up EXIT

echo "== the files are clean"
docker compose config -q
docker compose -f docker-compose.yml -f docker-compose.insecure.yml config -q
SUPERLINK=fl.example.org:8000 DATA=/tmp docker compose -f docker-compose.device.yml config -q

echo "== the image builds"
docker compose build --quiet
docker image inspect --format 'image: {{.Size}} bytes, user {{.Config.User}}' "$FEDSKETCH_IMAGE"
in_image() { docker run --rm --network none "$FEDSKETCH_IMAGE" "$@"; }
[ "$(in_image id -u)" = 10001 ] || fail "the image runs as root"
secret=('(' -name '*.key' -o -name secret -o -name '.env' ')')
[ -z "$(in_image find /app /certs /node /registry /roster /server /gate /superexec /trust -type f "${secret[@]}")" ] ||
    fail "there is a secret in the image"
in_image python -c 'import torch; assert torch.version.cuda is None, torch.__version__' ||
    fail "torch is not the CPU build"

echo "== three nodes start"
docker compose up --detach
for _ in $(seq 90); do
    healthy=$(docker compose ps --format '{{.Service}} {{.Health}}' | grep -c '^supernode-[012] healthy' || true)
    [ "$healthy" = 3 ] && break
    sleep 2
done
[ "$healthy" = 3 ] || fail "only $healthy of 3 nodes are healthy"

echo "== they train with secure aggregation"
three=(clients.total=3 clients.per_round=3 "${patient[@]}")
docker compose run --rm -T fedsketch strategy=dome rounds=3 "${three[@]}" || fail "the run did not complete"
docker compose exec -T serverapp sh -c 'test -s /runs/*/model.safetensors && test -s /runs/*/report.html' ||
    fail "there is no model"

echo "== every device keeps its own ledger"
for number in 0 1 2; do
    docker compose exec -T "supernode-$number" fedsketch-enroll /node/device --verify | ledger_has 3 ||
        fail "device $number has not written down its three rounds"
done

echo "== a device reaches the Fleet API and nothing else"
knock='import ssl, sys, urllib.error, urllib.request
trusted = ssl.create_default_context(cafile="/node/ca.crt")
try:
    request = urllib.request.Request(sys.argv[1], b"", {"content-type": "application/protobuf"})
    urllib.request.urlopen(request, timeout=5, context=trusted)
except urllib.error.HTTPError as error:
    print(error.code)
except urllib.error.URLError:
    print("unreachable")'
ask() { docker compose exec -T supernode-0 python -c "$knock" "$1"; }
[ "$(ask https://gate:8000/v1/control/list-runs)" = 404 ] || fail "the Control API is open to devices"
[ "$(ask https://gate:8000/v1/runtime/acquire-task)" = 404 ] || fail "the Runtime API is open to devices"
[ "$(ask https://superlink:8000/v1/fleet/pull-messages)" = unreachable ] || fail "devices reach the SuperLink"
[ "$(ask https://gate:8000/v1/fleet/pull-messages)" = 401 ] || fail "a node without a signature is let in"

echo "== every service has the keys that it needs, and no other"
find_keys="find / -path /proc -prune -o -path /sys -prune -o -name '*.key' -print 2> /dev/null | sort | xargs"
keys() { docker compose exec -T "$1" sh -c "$find_keys"; } # SERVICE: the private keys that it can read
[ "$(keys superlink)" = /server/server.key ] || fail "the SuperLink has $(keys superlink)"
[ "$(keys gate)" = /gate/gate.key ] || fail "the gate has $(keys gate)"
[ -z "$(keys serverapp)" ] || fail "the ServerApp has $(keys serverapp)"
for number in 0 1 2; do
    has=$(keys "supernode-$number")
    [ "$has" = "/node/auth.key /node/device/identity.key" ] || fail "device $number has $has"
done
seen=$(for number in 0 1 2; do docker compose exec -T "supernode-$number" sha256sum /node/auth.key; done | sort -u)
[ "$(wc -l <<< "$seen")" = 3 ] || fail "devices share a key"
has=$(docker compose run --rm -T --no-deps --entrypoint sh register -c "$find_keys")
[ -z "$has" ] || fail "register has $has"
said=$(docker compose run --rm -T --no-deps --entrypoint sh register -c 'echo x > /trust/ca.crt' 2>&1) &&
    fail "register can replace the certificate of the authority"
[[ $said == *"ead-only"* ]] || fail "register could not write for another reason: $said"

echo "== a second container of a device says so; NODES is 0 or nothing"
said=$(docker compose run --rm -T --no-deps supernode-0 2>&1 || true)
[[ $said == *"Another container is this device"* ]] || fail "two containers are one device"
said=$(NODES=5 docker compose run --rm -T certs 2>&1) && fail "NODES=5 was taken"
[[ $said == *"NODES=0 starts no demo devices"* ]] || fail "NODES=5 failed for another reason: $said"

echo "== the gate is not healthy when no request gets through, and is again"
docker compose stop --timeout 5 superlink
docker compose exec -T gate python /app/docker/healthy.py 2> /dev/null && fail "the gate is healthy without a SuperLink"
docker compose start superlink
for _ in $(seq 60); do docker compose exec -T gate python /app/docker/healthy.py 2> /dev/null && break || sleep 2; done
docker compose exec -T gate python /app/docker/healthy.py || fail "the gate is not healthy again"
docker compose exec -T superlink python /app/docker/healthy.py || fail "the SuperLink is not healthy"

echo "== the override for a laptop trains without TLS and says that it is not private"
docker compose --profile command down --volumes --timeout 5 > /dev/null 2>&1
insecure() { docker compose -f docker-compose.yml -f docker-compose.insecure.yml "$@"; }
insecure up --detach
said=$(insecure run --rm -T fedsketch rounds=1 "${three[@]}") || {
    insecure logs --no-color --tail 60 >&2
    fail "the run without TLS did not complete"
}
[[ $said == *"NOT PRIVATE"* ]] || fail "an insecure run claims its guarantee"

echo "== three devices join with their own keys, policies and data"
insecure --profile command down --volumes --timeout 5 > /dev/null 2>&1
export NODES=0 SERVER_NAMES=${reached%:*} FEDSKETCH_LISTEN=0.0.0.0:18443 TEST_DATA=$scratch/test
chmod 755 "$scratch"
mkdir "$TEST_DATA" "$scratch"/{a,b,c,a-data,b-data,c-data,incoming}
docker run --rm --network none --user "$(id -u):$(id -g)" --volume "$scratch:/scratch" "$FEDSKETCH_IMAGE" python -c '
import numpy as np
from sklearn.datasets import load_digits
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
places = ("a-data/train", "b-data/train", "c-data/train", "test/test")
for place, part in zip(places, np.split(np.arange(len(labels)), [500, 900, 1400])):
    np.savez(f"/scratch/{place}.npz", inputs=images[part], targets=labels[part])'
admit() { # NAME: what the operator does with the two public keys of a device
    cp "$scratch/$1/"{auth.key.pub,identity.pub} "$scratch/incoming"
    docker compose run --rm -T --no-deps --volume "$scratch/incoming:/incoming:ro" register admit "$1" ||
        fail "device $1 was not taken in"
}
hand_out() { # what every device does with the operator's public files
    rm -rf "$scratch/for-devices"
    docker compose cp serverapp:/trust "$scratch/for-devices"
    docker compose cp serverapp:/roster/. "$scratch/for-devices"
    for name in a b c; do
        cp "$scratch/for-devices/"{ca.crt,roster.json} "$scratch/$name/"
        device "$name" run --rm -T enroll fedsketch-enroll /node/device --roster /node/roster.json
    done
}
train() { # ROUNDS, and the rounds that every device's ledger holds afterwards
    docker compose run --rm -T fedsketch data=folder data.root=/data/test.npz 'data.shape=[1,8,8]' \
        "rounds=$1" "${three[@]}" || {
        for name in a b c; do device "$name" logs --no-color --tail 30 >&2; done
        fail "the devices' run did not complete"
    }
    for name in a b c; do
        device "$name" run --rm -T enroll fedsketch-enroll /node/device --verify | ledger_has "$2" ||
            fail "the ledger of device $name does not hold $2 rounds"
    done
}
docker compose up --detach
for name in a b c; do
    device "$name" run --rm -T enroll
    cp docker/demo-policy.toml "$scratch/$name/device/policy.toml"
    admit "$name"
done
hand_out
for name in a b c; do device "$name" up --detach; done
train 2 2

echo "== keys are rotated, the certificate is renewed, a device restored, containers replaced; ledgers go on"
device a run --rm -T enroll fedsketch-enroll /node/device --rotate
device a run --rm -T enroll
admit a
mv "$scratch/b/auth.key" "$scratch/b/old.key"
device b run --rm -T enroll
docker compose run --rm -T --no-deps register remove b
admit b
hand_out
device b restart
before=$(docker compose exec -T gate sha256sum /gate/gate.crt)
SERVER_NAMES="$SERVER_NAMES new.example.org" docker compose run --rm -T certs
docker compose restart superlink gate
[ "$(docker compose exec -T gate sha256sum /gate/gate.crt)" != "$before" ] || fail "the certificate is the old one"
device c down --timeout 5
cp -a "$scratch/c" "$scratch/backup"
rm -r "$scratch/c"
mv "$scratch/backup" "$scratch/c"
device c up --detach
docker compose up --detach --force-recreate serverapp gate
train 1 3

echo "== one of them is taken away"
docker compose run --rm -T --no-deps register remove c
docker compose cp serverapp:/roster/roster.json "$scratch/roster.json"
nodes='import json, sys; print(len(json.load(open(sys.argv[1]))["nodes"]))'
[ "$(python3 -c "$nodes" "$scratch/roster.json")" = 2 ] || fail "the roster still has three nodes"
echo ok
