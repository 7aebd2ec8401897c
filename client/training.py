"""A device's part of a round: load its data and the model, run the strategy's local step, release the result."""

import torch
from flwr.app import ConfigRecord, RecordDict

from fedsketch.client.memory import memory_in
from fedsketch.client.release import device_stream, release
from fedsketch.client.workspace import job_of, model_of
from fedsketch.conf import Config
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError
from fedsketch.replay.replica import completed
from fedsketch.strategies import local_step
from fedsketch.strategies.shared.messages import decoded
from fedsketch.strategies.shared.terms import RingTerms
from fedsketch.strategies.shared.uploads import upload


def take_part(content: RecordDict, client: int, state: RecordDict) -> RecordDict:
    """From the server's broadcast to this client's clipped and noised vector; `state` is what Flower keeps for the node."""
    broadcast = completed(decoded(content))
    config = broadcast.config
    terms = broadcast.terms
    if isinstance(terms, RingTerms) and terms.unit.value != config.privacy.unit.value:
        raise UnsafeUpdateError("the terms protect another unit than the configuration names.")
    model = model_of(config)
    model.load(broadcast.model)
    generator = _generator(config, client, broadcast.round)
    with memory_in(state) as memory:
        rows = local_step(config.strategy.name)(
            broadcast, job_of(config).shard(client), model, generator, memory
        )
    with device_stream(client, broadcast.round) as stream:
        reply = upload(release(rows, terms, stream, broadcast.round))
    if isinstance(terms, RingTerms):
        # For the codec on this device, which compares them with what the round was opened with.
        reply["terms"] = ConfigRecord(terms.to_record())  # type: ignore[arg-type]
    return reply


def _generator(config: Config, client: int, round: int) -> torch.Generator:
    """For batches: reproducible, and no secret (the guarantee does not rest on it)."""
    key = derived_key(config.seed, "batches", client, round)
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "big", signed=True))
