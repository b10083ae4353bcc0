"""What comes from outside: known model names, chat templates, response templates, and formats that users declare in a file."""
