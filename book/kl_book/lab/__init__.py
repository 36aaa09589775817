"""What the experiments with language models measure, beside what `kl_companion.llm` does."""
