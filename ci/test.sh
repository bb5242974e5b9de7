#!/usr/bin/env bash
# tokgate's own tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
exec "$PYTHON" -m pytest tests -m "not slow" "$@"
