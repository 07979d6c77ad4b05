"""A cost model that reads scheduled programs as graphs of loops, blocks and buffers."""
