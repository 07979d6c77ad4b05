"""Attributes of ONNX nodes as TVM's importer hands them to converters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text_attribute(attributes: Mapping[str, Any], name: str, default: str) -> str:
    """An attribute that is a string: the importer gives some as bytes."""
    value = attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)
