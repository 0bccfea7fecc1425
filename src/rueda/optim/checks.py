"""The limits of the optimizers' options, checked for torch and for Keras alike. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rueda.errors import RecipeError


def require(name: str, holds: bool, expected: str, got: object) -> None:
    """Raise a :class:`RecipeError` unless the condition holds."""
    if not holds:
        raise RecipeError(name, expected=expected, got=got, do="correct the optimizer's argument")


def check_lars(options: Mapping[str, Any]) -> None:
    """Refuse invalid options of LARS."""
    require("momentum", 0 <= options["momentum"] < 1, "at least 0 and below 1", options["momentum"])
    require("trust", options["trust"] > 0, "above 0", options["trust"])
    require("eps", options["eps"] >= 0, "at least 0", options["eps"])
    require("form", options["form"] in ("paper", "clipped"), "'paper' or 'clipped'", options["form"])
    require("nesterov", not options["nesterov"] or options["momentum"] > 0, "False without momentum", True)


def check_lamb(options: Mapping[str, Any]) -> None:
    """Refuse invalid options of LAMB."""
    check_novograd(options)
    phi = options["phi"]
    require("phi", phi is None or 0 <= phi[0] <= phi[1] != 0, "(low, high) or None", phi)


def check_novograd(options: Mapping[str, Any]) -> None:
    """Refuse invalid options of NovoGrad."""
    require("betas", all(0 <= beta < 1 for beta in options["betas"]), "both from 0 to below 1", options["betas"])
    require("eps", options["eps"] > 0, "above 0", options["eps"])


def check_common(options: Mapping[str, Any]) -> None:
    """Refuse invalid values of the options that all optimizers have."""
    require("weight_decay", options["weight_decay"] >= 0, "at least 0", options["weight_decay"])
    require("adapt", options["adapt"] in (None, True, False), "None, True or False", options["adapt"])
