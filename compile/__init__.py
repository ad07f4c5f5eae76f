"""A checkpoint in, an artefact for one target out, verified against the checkpoint."""
