"""Keys as digits that two people can read to each other over the telephone.

How many digits are needed depends on what an attacker has to find, who can make as many keys as he likes:

- For one node he needs a key of his own with the same digits as an honest device's key (a second preimage). 25 digits
  are 83 bits, so that takes about 2^83 hashes. The node's id is part of the hash, so each hash tests one device only.
- For a roster he may choose both sides: two lists with keys of his own that have the same digits (a collision). That
  takes only the square root of the number of possible digits, so there are twice as many digits: again about 2^83
  hashes.

A hundred thousand graphics cards with 10^10 hashes a second each would need about 300 years for 2^83.
"""

from __future__ import annotations

import hashlib

from fedsketch.secagg import Roster

NODE_DIGITS = 25
ROSTER_DIGITS = 50
_GROUP = 5


def node_fingerprint(node: int, public: bytes) -> str:
    """Return the digits of a key under an id."""
    return _digits(b"fedsketch node" + _entry(node, public), NODE_DIGITS)


def roster_fingerprint(roster: Roster) -> str:
    """Return the digits of all entries of a roster, in whatever order and layout the file has them."""
    entries = b"".join(_entry(node, key) for node, key in sorted(roster.keys.items()))
    return _digits(b"fedsketch roster" + entries, ROSTER_DIGITS)


def _entry(node: int, public: bytes) -> bytes:
    return node.to_bytes(8, "big") + public


def _digits(content: bytes, count: int) -> str:
    number = int.from_bytes(hashlib.sha256(content).digest(), "big") % 10**count
    digits = f"{number:0{count}d}"
    return " ".join(digits[i : i + _GROUP] for i in range(0, count, _GROUP))
