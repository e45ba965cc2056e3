"""Checks a plain description of an FSDP set-up: its arguments, the order of the steps, what the model is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verldoctor import fsdp_plain_args, fsdp_plain_order
from verldoctor.fsdp_description import ARGUMENTS, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.context import Context
    from verldoctor.finding import Finding
    from verldoctor.fsdp_load import Config

_TOPS = {"fsdp", "fsdp_config", "fsdp_plugin", "order", "requires_grad", "param_dtypes", "model_modules"}


def recognises(config: Config) -> bool:
    """Whether `config` describes an FSDP set-up."""
    tops: set[Any] = {key.partition(".")[0] for key in config.settings}
    return bool(tops & _TOPS or tops & ARGUMENTS or any(str(top).startswith("fsdp_") for top in tops))


def judge(config: Config, context: Context) -> Iterator[Finding]:
    """Findings about a plain description."""
    described = describe(config, context.env)
    for rule in (*fsdp_plain_order.RULES, *fsdp_plain_args.RULES):
        yield from rule(described)
