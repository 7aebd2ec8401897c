"""Adds the configuration folders of installed packages to Hydra's search path, after the built-in ones."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fedsketch.conf.plugins import configuration_folders


class InstalledPackages(SearchPathPlugin):
    """A plugin that Hydra calls whenever it makes a search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package, folder in configuration_folders():
            search_path.append(package, f"file://{folder}")


def search_installed_packages() -> None:
    """Let Hydra find the files of installed packages in this process. Calling it again changes nothing."""
    Plugins.instance().register(InstalledPackages)
