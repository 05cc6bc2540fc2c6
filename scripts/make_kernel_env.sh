#!/usr/bin/env bash
# Makes an environment with other versions of the notebook packages, on top of another environment's rest:
# torch and the test tools are not installed twice.
# Usage: scripts/make_kernel_env.sh .venv/bin/python .venv-databricks scripts/databricks.txt
set -euo pipefail

base_python=$1
target=$2
pins=$3
site='import sysconfig; print(sysconfig.get_path("purelib"))'

rm -rf "$target"
"$base_python" -m venv "$target"
shared=$("$base_python" -c "$site")
own=$("$target/bin/python" -c "$site")
# addsitedir puts the other environment's packages after this one's own, and lmnb's editable install with them.
echo "import site; site.addsitedir('$shared')" >"$own/zz_shared.pth"
"$target/bin/python" -m pip install -q -r "$pins"
"$target/bin/python" - "$pins" <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

lines = [line.strip() for line in Path(sys.argv[1]).read_text().splitlines()]
pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
found = {name: version(name) for name in pins}
assert found == pins, f"{found}, not {pins}"
PYTHON
