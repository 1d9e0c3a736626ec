"""Exchanges with a language model as MLflow traces.

A trace's id is a hash of the campaign and the exchange, so that writing it twice leaves one trace.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey

log = logging.getLogger("tilewright.mirror")

PREVIEW = 500


class TraceWriter:
    """Writes exchanges into one experiment. Raises the store's errors; calling again is safe."""

    def __init__(self, uri: str) -> None:
        self._client = TracingClient(uri)
        self._supported = True

    def write(
        self, campaign: str, experiment: str, run: str, key: str, exchange: dict[str, Any], at: float
    ) -> None:
        """One exchange that was answered ``at`` (Unix seconds), linked to MLflow run ``run``."""
        if not self._supported:
            return
        digest = hashlib.sha256(f"{campaign}/{key}".encode()).hexdigest()
        trace, span = f"tr-{digest[:32]}", digest[32:48]
        took = float(exchange.get("seconds", 0.0))
        info = _info(trace, experiment, run, exchange, at - took, took)
        try:
            self._client.start_trace(info)
            self._client.log_spans(experiment, [_span(trace, span, exchange, at - took, at)])
        except NotImplementedError as error:
            log.warning("this MLflow store keeps no traces of exchanges with the model: %s", error)
            self._supported = False


def _usage(exchange: dict[str, Any]) -> str:
    asked, answered = exchange.get("prompt_tokens", 0), exchange.get("completion_tokens", 0)
    return json.dumps({"input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered})


def _info(
    trace: str, experiment: str, run: str, exchange: dict[str, Any], began: float, took: float
) -> TraceInfo:
    proposal, _, attempt = str(exchange.get("salt", "")).partition(".")
    return TraceInfo(
        trace_id=trace,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=int(began * 1000),
        execution_duration=int(took * 1000),
        state=TraceState.ERROR if exchange.get("error") else TraceState.OK,
        request_preview=exchange["messages"][-1]["content"][-PREVIEW:],
        response_preview=(exchange.get("error") or exchange.get("reply", ""))[:PREVIEW],
        trace_metadata={TraceMetadataKey.SOURCE_RUN: run, TraceMetadataKey.TOKEN_USAGE: _usage(exchange)},
        tags={
            TraceTagKey.TRACE_NAME: "llm proposal",
            "model": str(exchange.get("model", "")),
            "tilewright.candidate": proposal,
            "tilewright.attempt": attempt,
        },
    )


def _span(trace: str, span: str, exchange: dict[str, Any], began: float, ended: float) -> Span:
    error = str(exchange.get("error", ""))
    attributes = {
        SpanAttributeKey.REQUEST_ID: trace,
        SpanAttributeKey.SPAN_TYPE: "CHAT_MODEL",
        SpanAttributeKey.INPUTS: {"model": exchange.get("model"), "messages": list(exchange["messages"])},
        SpanAttributeKey.OUTPUTS: {"role": "assistant", "content": exchange.get("reply", "")},
    }
    texts = {name: json.dumps(value) for name, value in attributes.items()}
    return Span.from_dict(
        {
            "trace_id": trace,
            "span_id": span,
            "parent_span_id": "",
            "name": "llm proposal",
            "start_time_unix_nano": int(began * 1e9),
            "end_time_unix_nano": int(ended * 1e9),
            "status": {"code": "ERROR" if error else "OK", "message": error},
            "attributes": {**texts, SpanAttributeKey.CHAT_USAGE: _usage(exchange)},
        }
    )
