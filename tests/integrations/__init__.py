"""Other packages on top of the hooks: OpenTelemetry, Prometheus."""
