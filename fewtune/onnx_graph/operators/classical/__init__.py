"""Operators of classical machine learning (domain ai.onnx.ml), rewritten in ONNX's own."""
