"""What would break, told before anything is built: pins, locks, wheels and Dockerfiles against what fails."""
