"""The steps of `fewtune.tune`: those of the pipeline's stages, in one call and one folder."""
