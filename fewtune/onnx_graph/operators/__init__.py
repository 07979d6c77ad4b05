"""Operators that TVM's importer lacks or gets wrong, rewritten in operators that it has.

`expand.expand` goes through a model once; each family of operators has its file.
"""
