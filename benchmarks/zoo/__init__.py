"""The zoo: published architectures with seeded random weights, checked by parameter counts."""
