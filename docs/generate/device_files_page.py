"""The files that the owner of a device writes, key by key."""

from dataclasses import MISSING, fields

from wrapping import escaped, item, page, wrapped

from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.owners_file import OwnersFile
from fedsketch.client.guard.policy import Policy


def _keys(file: type[OwnersFile]) -> str:
    lines = []
    for one in fields(file):  # type: ignore[arg-type]
        default = "" if one.default is MISSING else f" = `{_toml(one.default)}`"
        lines.append(item(f"**`{one.name}`**{default}: {escaped(one.metadata['explanation'])}"))
    return "\n".join(lines)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple():
            return str(list(value))
    return str(value)


def device_files() -> str:
    return page(
        "Files of a device",
        "For owners of devices. Both files are TOML, in the device's folder, and `fedsketch-enroll` writes them with "
        "every key explained. [Enrol a device](../how-to/enrol.md) says how they are made, [What a device "
        "decides](../explanation/devices.md) how they are used.",
        "## policy.toml",
        wrapped(Policy.head),
        _keys(Policy),
        "## data.toml",
        wrapped(DataCard.head),
        _keys(DataCard),
    )
