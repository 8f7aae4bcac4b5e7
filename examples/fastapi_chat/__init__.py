"""A chat page that shows double texting with and without chatlock, side by side."""
