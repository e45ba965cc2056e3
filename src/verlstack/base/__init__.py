"""What an image stands on: a Debian bootstrap or a pulled image, and the stack's own Python."""
