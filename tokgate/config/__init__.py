"""YAML files -> frozen typed objects. Every fault is listed with file:line, key and the nearest known key."""
