"""Kernel bodies within a call: read out of its configuration and put back; modules made bytes again."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tilewright.workers.runners.mosaic import ir as read


def body_of(call: Any) -> tuple[dict[str, Any], read.MosaicKernel]:
    """A call's configuration and the kernel in it, in a context of its own."""
    config = json.loads(ir.StringAttr(call.attributes["backend_config"]).value)
    with read.kernel_context(), ir.Location.unknown():
        module = read.parse_body(base64.b64decode(config["custom_call_config"]["body"]))
        return config, read.MosaicKernel.of(module)


def replace_body(call: Any, config: dict[str, Any], module: Any) -> None:
    """Give a call another kernel."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer, desired_version=0)
    config["custom_call_config"]["body"] = base64.b64encode(buffer.getvalue()).decode()
    call.attributes["backend_config"] = ir.StringAttr.get(json.dumps(config), call.operation.context)


def serialized_module(module: Any) -> bytes:
    """Bytes of a module, which cannot be used any more."""
    return bytes(stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version()))
