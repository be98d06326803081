"""Middleware for other packages: OpenTelemetry, Prometheus."""
