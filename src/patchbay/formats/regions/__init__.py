"""What markers open: calls in a wrapper, reasoning, frames of invented results, special tokens that leak."""
