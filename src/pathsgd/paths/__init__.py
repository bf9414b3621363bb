"""What users ask of a model: gamma^2, kappa, rescalings, an explanation."""
