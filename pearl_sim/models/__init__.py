"""Real models: the only part of the package that imports torch and transformers (extra: models)."""
