"""Operators of classical machine learning (domain ai.onnx.ml), written in ONNX's own."""
