#!/usr/bin/env bash
# Builds .venv from the locks, or brings it up to date; returns at once when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
py=$venv/bin/python
log=$venv/setup.log
stamp=$venv/setup.stamp
need_gb=3

die() { echo "setup: error: $*" >&2; exit 1; }
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
supported() { case "$(version "$1")" in 3.11 | 3.12) true ;; *) false ;; esac; }

# The folder is part of it: an environment does not survive a move.
fingerprint() {
  { pwd; cat requirements.lock requirements-nodeps.lock pyproject.toml scripts/setup.sh; } | cksum
}

find_python() {
  for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
    if supported "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  die "needs Python 3.11 or 3.12, but ${PYTHON:-python3} is $(version "${PYTHON:-python3}" ||
    echo missing); install one, or name it: make setup PYTHON=/path/to/python3.12"
}

check_space() {
  local free_gb
  free_gb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
  [ "$free_gb" -ge $need_gb ] ||
    die "only $free_gb GB free in $PWD, needs $need_gb; free some, then run make setup again"
}

explain_failure() {
  if grep -qE 'No space left on device|Errno 28|Disk quota exceeded' "$log"; then
    die "the disk got full; free $need_gb GB here and in ${TMPDIR:-/tmp}, then run make setup again"
  elif grep -q 'ensurepip is not available' "$log"; then
    die "this Python lacks the venv module; install it (Debian: apt-get install python3-venv)"
  elif grep -qE 'connection broken|Could not fetch URL|Max retries exceeded|Read timed out' "$log"; then
    die "cannot reach the package registry; check network, proxy and 'pip config list', then run" \
      "make setup again (details: $log)"
  fi
  die "$(grep -iE '^error' "$log" | head -n 1 || tail -n 1 "$log") (details: $log)"
}

phase() {
  echo "setup: $1"
  shift
  mkdir -p $venv
  "$@" >"$log" 2>&1 || explain_failure
}

pip() { "$py" -m pip --disable-pip-version-check --no-input install -q "$@"; }

if supported $py && [ "$(cat $stamp 2>/dev/null)" = "$(fingerprint)" ]; then
  echo "setup: up to date"
  exit 0
fi
check_space
if [ -n "$(version $py)" ]; then
  supported $py || die "$venv holds Python $(version $py), needs 3.11 or 3.12; rm -r $venv, then" \
    "run make setup again"
else
  python=$(find_python)
  rm -rf $venv
  phase "1/4 virtual environment with Python $(version "$python")" "$python" -m venv $venv
fi
rm -f $stamp
phase "2/4 packages of requirements.lock (minutes the first time)" pip -r requirements.lock
phase "3/4 bfcl-eval and this project" pip --no-deps --no-build-isolation \
  -r requirements-nodeps.lock -e .
phase "4/4 Jupyter kernel" "$py" -m ipykernel install --sys-prefix --name python3 \
  --display-name "Python 3 (rc_lib)"
fingerprint >$stamp
echo "setup: done"
