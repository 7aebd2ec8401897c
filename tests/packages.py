"""Packages with entry points, put on the path as an installer leaves them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Install = Callable[[str, dict[str, str], dict[str, str]], None]


@contextmanager
def installing(folder: Path, changed: Callable[[], None]) -> Iterator[Install]:
    """Yields a function that installs a package below a folder; all are gone afterwards. `changed` forgets what was
    composed without them, or with them."""
    from fedsketch.conf.plugins import implementation, settings_class

    before = set(sys.modules)
    settings_class.cache_clear()
    with pytest.MonkeyPatch.context() as patch:

        def install(package: str, files: dict[str, str], entries: dict[str, str]) -> None:
            site = folder / package
            for name, text in files.items():
                (site / package / name).parent.mkdir(parents=True, exist_ok=True)
                (site / package / name).write_text(text)
            info = site / f"{package}-1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            )
            lines = [f"[{group}]\n{line}\n" for group, line in entries.items()]
            (info / "entry_points.txt").write_text("\n".join(lines))
            patch.syspath_prepend(site)
            changed()

        yield install
    changed()
    settings_class.cache_clear()
    implementation.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]
