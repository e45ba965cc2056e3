"""Signatures and attestations of images as cosign writes and reads them: with keys (ECDSA P-256), or keyless."""
