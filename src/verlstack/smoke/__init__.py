"""`verlstack smoke`: run the smoke tests inside an image, in containers, unpacked, or under Slurm."""
