"""Signatures and attestations of images as cosign writes and reads them: ECDSA P-256 keys, no service needed."""
