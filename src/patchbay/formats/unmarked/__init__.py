"""Calls that nothing marks: whether they count is for the offered tools and their place in the text to say."""
