"""What a call costs that a model of a realtime session makes."""
