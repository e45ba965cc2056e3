"""Software bills of materials: what an image holds, checked against its layers, as CycloneDX and SPDX."""
