"""What a device makes of a run's configuration."""

import pytest

from fedsketch.client.describe import card_for
from fedsketch.client.guard.policy import Policy
from fedsketch.client.guard.task import admitted
from fedsketch.conf import compose


@pytest.mark.parametrize("data", ["folder", "digits"])
def test_a_device_drops_every_path_that_a_message_names(data: str) -> None:
    asked = compose([f"data={data}", "data.root=/etc", "data.public_root=/home"])
    played = admitted(asked, Policy(), card_for(compose([f"data={data}"]))).config.data
    assert (played.root, played.public_root) == (None, None)
