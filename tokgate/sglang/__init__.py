"""The only place that knows SGLang: flags by version, log lines, HTTP fields, names of metrics."""
