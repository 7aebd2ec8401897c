"""MODEL_CARD.md: what a person who receives the model should know, made from the run's configuration and summary.

Its sections follow the topics of NIST SP 800-226, "Guidelines for Evaluating Differential Privacy Guarantees": unit,
parameters, mechanism, accounting, trust, exposure, utility and bias, access, implementation. What a run cannot know is
listed for whoever publishes the model. Nothing in the card is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedsketch.conf import Config
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.conf.schema import Against, Noise, NoSecAggConfig, Randomness
from fedsketch.conf.settings import PartitionedSettings
from fedsketch.conf.table_settings import TableSettings
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.server.report import number_format as readable
from fedsketch.server.report.number_format import in_order

_SIMULATED = ("local", "simulation", "cohort")


def model_card(config: Config, summary: Mapping[str, Any]) -> str:
    """Return the text of the card."""
    title = (
        f"# Model card: {config.model.name} trained by {config.strategy.name} on {config.data.name}"
    )
    sections = {
        "Model": _model(config, summary),
        "Unit of privacy": _unit(config),
        "Privacy parameters": _parameters(config, summary),
        "Mechanism": _mechanism(config, summary),
        "Composition and accounting": _accounting(config, summary),
        "Trust and threat model": _trust(config, summary),
        "Data, and who was exposed to it": _data(config),
        "Utility and bias": _utility(config, summary),
        "Access, and what else is released": _access(config, summary),
        "Implementation hazards": _hazards(config, summary),
        "To be added by whoever publishes the model": _to_add(),
    }
    parts = [
        title,
        "Made by the run itself. Its sections follow NIST SP 800-226.",
        *_warnings(summary),
    ]
    for heading, lines in sections.items():
        parts.append(f"## {heading}\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _warnings(summary: Mapping[str, Any]) -> Iterator[str]:
    if summary.get("not_private"):
        yield f"**NOT PRIVATE: {summary['not_private']}.** No epsilon below holds."
    if summary.get("stopped"):
        yield f"**{summary['stopped']}**"


def _model(config: Config, summary: Mapping[str, Any]) -> Iterator[str]:
    frozen = f", and {summary['frozen']:,} that were not trained" if summary.get("frozen") else ""
    yield (
        f"- Model `{config.model.name}` with {summary['parameters']:,} trained parameters{frozen}, after "
        f"{summary['rounds']} of {config.rounds} rounds."
    )
    if config.model.features is not None:
        yield f"- A frozen feature map, `{config.model.features}`, stands in front of it. It learned nothing."
    if config.model.weights is not None:
        yield (
            f"- It started from given weights (`{config.model.weights}`). What those were trained on is not covered "
            "by anything below."
        )
    made = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    yield f"- Made with {made}."
    yield "- Every setting is in `config.yaml`, every round in `metrics.jsonl`."


def _unit(config: Config) -> Iterator[str]:
    what = {
        Unit.CLIENT: "one client, with all its data",
        Unit.EXAMPLE: "one example; a person with many examples is protected less",
    }[config.privacy.unit]
    yield f"- What is hidden is the contribution of {what}."
    yield "- Adjacency: its contribution is replaced by zeros. Everything public stays the same."
    if config.privacy.unit is Unit.CLIENT:
        yield "- Whether a client is one person depends on who runs it: a person with two clients counts twice."


def _epsilon(name: str, config: Config, summary: Mapping[str, Any]) -> str:
    """Return the cells of one adversary. What those spent who know the cohorts tells how large these were, which is
    not for the readers of a card if the draw is secret."""
    value, delta, limit = summary["epsilon"][name], summary["delta"], ""
    if value is None:
        return "no guarantee | |"
    if config.draw_may_be_secret and name != Against.MODEL:
        budget = config.privacy.epsilon if name == summary["budget_against"] else None
        if budget is None or value > budget:
            return "in `summary.json`, because it tells how many were drawn | |"
        value, limit = budget, "at most "
    guess = f"{100 * readable.best_guess(value, delta):.4g} %"
    return f"{limit}{value:.4g} | {delta:g} | {guess} (50 % without the run)"


def _parameters(config: Config, summary: Mapping[str, Any]) -> Iterator[str]:
    delta = summary["delta"]
    yield "| against | epsilon | delta | a guess of whether a unit took part is right with at most |"
    yield "|---|---|---|---|"
    for name in in_order(summary["epsilon"]):
        yield f"| {name} | {_epsilon(name, config, summary)} |"
    budget = config.privacy.epsilon
    if budget is not None:
        yield f"\n- The budget was epsilon {budget:g}, against {summary['budget_against']}."
    else:
        yield "\n- There was no budget: the noise was given."
    if config.privacy.unit is Unit.CLIENT:
        expected = delta * config.clients.total
        yield f"- Delta times the number of clients is {expected:.2g}; it should be far below 1."


def _mechanism(config: Config, summary: Mapping[str, Any]) -> Iterator[str]:
    yield f"- {summary['guarantee']}"
    clip = "at no norm" if config.privacy.clip is None else f"at norm {config.privacy.clip}"
    if config.privacy.clip == "adaptive":
        clip = "at a norm that follows a noised quantile of the updates' norms"
    unit = "each example's gradient" if config.privacy.unit is Unit.EXAMPLE else "each update"
    yield f"- Clipping of {unit}: {clip}. Noise multiplier: {summary['noise_multiplier']:.4g}."
    if not config.privacy.private:
        return
    if _trusted(summary):
        yield "- The noise is added by the server, after it has seen the uploads."
    elif config.strategy.noise_in_training:
        yield "- The noise is added on the device, in every step of its training."
    else:
        yield "- The noise is added on the device, to what it sends, before it leaves."


def _accounting(config: Config, summary: Mapping[str, Any]) -> Iterator[str]:
    clients = config.clients
    yield (
        f"- {summary['rounds']} rounds were played, with {clients.per_round} of {clients.total} clients in a round "
        f"(sampling: {clients.sampling.value})."
    )
    if config.validation.patience is not None:
        yield "- The models may end such a run early, so epsilon is that of all planned rounds once they have."
    yield (
        "- The server is charged for every attempt at a round, also for those that failed; all others for the rounds "
        "that were applied."
    )
    yield (
        "- Epsilon is for this run alone. Other runs on the same data, such as those that chose its settings, add to "
        "it and are not counted."
    )


def _trust(config: Config, summary: Mapping[str, Any]) -> Iterator[str]:
    for name in in_order(summary["adversaries"]):
        yield f"- {name}: {summary['adversaries'][name]}."
    if isinstance(config.secagg, NoSecAggConfig):
        yield "- No secure aggregation: the server sees every upload."
    else:
        yield f"- Secure aggregation `{config.secagg.name}`: the server sees sums of a round's clients."
    if config.clients.tolerated_dropouts:
        yield (
            f"- Up to {config.clients.tolerated_dropouts:.0%} of a round's clients may vanish; the noise of the "
            "others makes up for them."
        )
    yield "- A client that poisons the model is not defended against."
    if config.runtime.name in _SIMULATED:
        yield (
            f"- The devices were simulated (`runtime={config.runtime.name}`): whoever ran this had the data of all "
            "clients. The numbers say what a deployment with these settings would reveal."
        )
    elif config.runtime.name == "processes":
        yield "- All devices were processes of one machine, whose owner had the data of all clients."


def _data(config: Config) -> Iterator[str]:
    data = config.data
    if not isinstance(data, PartitionedSettings):
        yield (
            f"- Data `{data.name}`: each device read its own. The server had a test set, and nothing of what the "
            "devices hold."
        )
    elif isinstance(data, TableSettings) and data.on_devices is not None:
        yield (
            f"- A table (`{data.name}`), by the scheme `{data.partition.scheme}`: each device had a file with its own "
            "rows."
        )
    else:
        yield (
            f"- Data set `{data.name}`. Every machine of the run could load all of it, and each client took its part, "
            f"by the scheme `{data.partition.scheme}` and the seed."
        )
        if data.public:
            yield (
                f"- {data.public:,} of its training examples were public: the server had them and no client did. They "
                "are not protected."
            )
    if data.public_root is not None:
        yield f"- The server had public examples in `{data.public_root}`. They are not protected."
    if config.validation.examples:
        yield (
            f"- {config.validation.examples:,} validation examples were the server's, and no client's. They are not "
            "protected."
        )
    yield "- On the devices the data are as safe as their owners keep them: training does not encrypt them."


def _utility(config: Config, summary: Mapping[str, Any]) -> Iterator[str]:
    for metric in config.task.all_metrics:
        value = summary.get(metric.name)
        if value is not None:
            yield f"- {metric.name} on the server's test set: {readable.metric(metric, value)}."
    best = summary.get("best")
    if best:
        yield (
            f"- `best.safetensors` is the model after round {best['round']}, chosen by {best['metric']} on the "
            "validation examples."
        )
    for name, result in ((summary.get("evaluation") or {}).get("metrics") or {}).items():
        yield (
            f"- {name} on examples that devices held out: {readable.plain(result['mean'])}, with noise of "
            f"{readable.plain(result['noise'])}."
        )
    yield "- No group of people was looked at on its own: a number may hide that the model is worse for some."
    if config.privacy.clip is not None:
        yield (
            "- Clipping shortens those updates most that are unlike the others, and noise hides rare patterns: "
            "expect more errors on small groups."
        )


def _access(config: Config, summary: Mapping[str, Any]) -> Iterator[str]:
    if not summary.get("not_private") and summary["epsilon"].get("model") is not None:
        yield (
            "- Whoever is given the model is the adversary `model` at most: it, and what is computed from it, costs "
            "that epsilon."
        )
    yield (
        "- Metrics on the test set are not covered: the server holds that set, and nothing about it counts as private."
    )
    if isinstance(config.evaluation, FederatedEvaluationConfig):
        yield "- Metrics on devices' own examples are noised, and in the epsilons above."
    yield (
        "- `metrics.jsonl`, `attempts.jsonl`, `run.log`, `summary.json` and `report.html` tell how many clients took "
        f"part: they are for the server.{_why_hidden(config)}"
    )
    yield "- `checkpoints/` holds the secret key of the cohorts, and of some strategies the noise: never give it away."


def _why_hidden(config: Config) -> str:
    if not config.metrics_are_secret:
        return ""
    why = (
        "The draw is secret here"
        if config.draw_may_be_secret
        else "A number of theirs has no noise"
    )
    return f" {why}, so they have mode 600; keep them, and what a tracker was told, so."


def _hazards(config: Config, summary: Mapping[str, Any]) -> Iterator[str]:
    if config.privacy.private:
        floating = (
            _trusted(summary)
            or config.strategy.noise_in_training
            or config.secagg.noise is Noise.GAUSSIAN
        )
        if floating:
            yield (
                "- Floating point: the noise is Gaussian in floating point, which is not an exact mechanism (Mironov "
                "2012)."
            )
        else:
            yield "- Floating point: the noise is drawn and added in integers, so that rounding does not weaken it."
        if config.privacy.randomness is Randomness.SECRET:
            yield "- Randomness: from the operating system of the machine that adds the noise."
        else:
            yield "- Randomness: from the seed, so that everybody can compute it."
    yield "- Timing, sizes of messages and who takes part are not hidden."
    yield "- Dropouts: who drops out, and when, is seen by the server."


def _to_add() -> Iterable[str]:
    return (
        "- What the model is for, and what it must not be used for.",
        "- Where the data come from, with whose consent, and whether one person can be several units.",
        "- How well it works for groups that matter, measured on data for that.",
        "- Which other releases were made from the same data, with their epsilons.",
        "- Who can read the run's folder, the server and the devices, and for how long.",
    )


def _trusted(summary: Mapping[str, Any]) -> bool:
    return summary["adversaries"].get("server") == "trusted"
