"""The families of a Hugging Face ``config.json``, read without ``transformers``."""
