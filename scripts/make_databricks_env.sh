#!/usr/bin/env bash
# Makes an environment with a Databricks runtime's notebook packages, on top of another environment's rest:
# torch and the test tools are not installed twice.
# Usage: scripts/make_databricks_env.sh .venv/bin/python .venv-databricks
set -euo pipefail

base_python=$1
target=$2
site='import sysconfig; print(sysconfig.get_path("purelib"))'

rm -rf "$target"
"$base_python" -m venv "$target"
shared=$("$base_python" -c "$site")
own=$("$target/bin/python" -c "$site")
# addsitedir puts the other environment's packages after this one's own, and lmnb's editable install with them.
echo "import site; site.addsitedir('$shared')" >"$own/zz_shared.pth"
"$target/bin/python" -m pip install -q -r "$(dirname "$0")/databricks.txt"
"$target/bin/python" - <<'PYTHON'
import ipykernel, ipywidgets, IPython

versions = ipykernel.__version__, ipywidgets.__version__, IPython.__version__
assert versions == ("6.29.5", "7.8.1", "8.30.0"), versions
PYTHON
