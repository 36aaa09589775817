"""Language models: RL with a KL term and on-policy distillation, on an embedded model or on your own."""
