"""What device_network.sh tries from inside a device's container: a line for each attempt."""

import socket
import sys
from pathlib import Path

MACHINE, INSIDE = sys.argv[1:]
SERVER = f"{MACHINE}:18447"


def connect(host: str, port: int, said: bytes = b"") -> str:
    try:
        with socket.create_connection((host, port), timeout=3) as connection:
            connection.settimeout(3)
            connection.sendall(said)
            answer = b""
            while part := connection.recv(1000):
                answer += part
    except OSError:
        return "unreachable"
    head, _, body = answer.rpartition(b"\r\n\r\n")
    return body.decode() or head.split(b" ")[1].decode()


def ask(target: str, method: str = "CONNECT") -> str:
    return connect("relay", 3128, f"{method} {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())


def name(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return "unknown"


print("through the relay:", ask(SERVER))
print("another port through the relay:", ask(f"{MACHINE}:18448"))
print("another address through the relay:", ask("192.0.2.1:18447"))
print("another name through the relay:", ask("example.org:18447"))
print("other words to the relay:", ask(f"http://{SERVER}/", "GET"))
print("the server without the relay:", connect(MACHINE, 18447))
print("this machine:", connect(MACHINE, 18448))
print("this machine on the device's network:", connect(INSIDE, 18448))
print("a name outside:", name("example.org"))
routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
print("a way out:", [route[2] for route in routes if route[1] == "00000000"] or "none")
