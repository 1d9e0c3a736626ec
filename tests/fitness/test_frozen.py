"""What a verdict is made of is never changed once it is made."""

import dataclasses
import importlib
import pkgutil

from pydantic import BaseModel

import tilewright.fitness
from tilewright.fitness.tpu.llo import ExecutedWork

COUNTED = {ExecutedWork}
"""Filled while a dump is read."""


def test_plain_data_is_frozen():
    for part in pkgutil.walk_packages(tilewright.fitness.__path__, "tilewright.fitness."):
        module = importlib.import_module(part.name)
        for made in vars(module).values():
            if not isinstance(made, type) or made.__module__ != part.name or made in COUNTED:
                continue
            if dataclasses.is_dataclass(made):
                assert made.__dataclass_params__.frozen, made
            if issubclass(made, BaseModel):
                assert made.model_config["frozen"], made
