"""Operators of vision networks that TVM's importer lacks, written in operators that it has."""
