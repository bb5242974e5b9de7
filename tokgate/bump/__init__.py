"""Bump: two SGLang versions side by side on the same GPU, and the search for the version that changed."""
