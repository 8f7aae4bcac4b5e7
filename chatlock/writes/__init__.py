"""What a turn changes outside its thread."""
