"""What onnxruntime says of a model that it refuses, in a line."""

import re

# Text that onnxruntime puts around its messages.
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:|Status Message: "
    r"|Exception during initialization: |/onnxruntime_src/\S+:\d+ [^)]*\) "
    r"|Non-zero status code returned while running "
)
_LONGEST = 300


def cannot_load(error: Exception) -> str:
    """Why a model is refused if onnxruntime, which is the reference, does not load it."""
    return (
        f"onnxruntime cannot load the model: {short_message(error)}; then no output can be "
        "checked: export the model with operators and types that onnxruntime has on CPUs"
    )


def short_message(error: Exception) -> str:
    """First line of an exception's text, without error codes and source positions."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = _NOISE.sub("", lines[0]) if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
