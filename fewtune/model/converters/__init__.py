"""Converters of ONNX operators that TVM's importer lacks, or gets slow or wrong."""
