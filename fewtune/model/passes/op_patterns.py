"""TVM's kinds of operators (``OpPatternKind``): ``FuseOps`` decides by them what is fused.

A kernel that a pass makes carries its kind as attribute ``op_pattern``.
"""

from __future__ import annotations

# Fused with producers and consumers alike.
ELEMENTWISE = 0
# Fused like elementwise operators, but not into a convolution or product before it.
INJECTIVE = 2
# Fused with elementwise operators before it.
REDUCTION = 3
# Fused with elementwise operators after it, such as a convolution.
OUT_ELEMENTWISE_FUSABLE = 4
# Never fused.
OPAQUE = 8
