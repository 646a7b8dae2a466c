"""The components that a checkout installs and downloads, as a bill of materials and as an audit.

Not part of the package: `make sbom` and `make audit` run it.
"""
