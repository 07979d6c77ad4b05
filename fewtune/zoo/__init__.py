"""The zoo: published architectures with seeded random weights, held to their published counts."""
