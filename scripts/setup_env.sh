# Sourced by the other scripts: finds Python and a compiler, makes .venv, installs pinned packages, builds ringcomm.
# Every function says in plain words what is missing and what to do, and ends the script.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# RINGCOMM_TORCH=VERSION: another torch than the pinned one, in an environment of its own.
VENV="${RINGCOMM_VENV:-$ROOT/.venv${RINGCOMM_TORCH:+-torch$RINGCOMM_TORCH}}"
LOGS="$ROOT/build/logs"

say() { printf '== %s\n' "$*"; }

fail() {
  printf '\n%s\n' "$*" >&2
  exit 1
}

# The interpreter that makes the virtual environment: $PYTHON, else python3.
check_python() {
  [ "$(uname -s)" = Linux ] || fail "ringcomm works on Linux only (it needs memfd, futex and epoll); this is $(uname -s)."
  PYTHON="${PYTHON:-python3}"
  command -v "$PYTHON" >/dev/null || fail "There is no $PYTHON here. Install Python 3.10 to 3.13 (Debian, Ubuntu: apt-get install python3 python3-venv python3-dev), or name one: PYTHON=/path/to/python3 $0"
  "$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' ||
    fail "$PYTHON is $("$PYTHON" --version 2>&1), and the pinned packages are there for Python 3.10 to 3.13. Name another: PYTHON=/path/to/python3 $0"
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$PYTHON cannot make virtual environments: its venv module is missing (Debian, Ubuntu: apt-get install python3-venv)."
}

check_compiler() {
  command -v "${CXX:-c++}" >/dev/null || fail "There is no C++ compiler (${CXX:-c++}). Install one that knows C++20 (Debian, Ubuntu: apt-get install g++)."
  echo 'int main() { return 0; }' | "${CXX:-c++}" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null ||
    fail "The C++ compiler ${CXX:-c++} does not know C++20; ringcomm needs g++ 11 or newer."
  "$PYTHON" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    fail "Python's C headers are missing (Debian, Ubuntu: apt-get install python3-dev)."
}

# run_logged NAME COMMAND...: quiet when it works; when not, the last lines and where the rest is.
run_logged() {
  local name="$1" log
  shift
  mkdir -p "$LOGS"
  log="$LOGS/$name.log"
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    fail "The step '$name' failed; the lines above are its last, all are in $log"
  fi
}

# requirement_lists FOLDER: copies requirements/ there, with RINGCOMM_TORCH in place of the pinned torch where it is set.
requirement_lists() {
  mkdir -p "$1"
  cp "$ROOT"/requirements/*.txt "$1"
  [ -z "${RINGCOMM_TORCH:-}" ] || sed -i "s/^torch==.*/torch==$RINGCOMM_TORCH/" "$1"/*.txt
}

# make_env NAME: .venv holding requirements/NAME.txt. Packages are installed again only when the lists have changed.
make_env() {
  local name="$1" want have="" stamp lists
  check_python
  check_compiler
  if ! "$VENV/bin/python" -c 'import sys' 2>/dev/null; then
    say "making the virtual environment $VENV"
    run_logged venv "$PYTHON" -m venv --clear "$VENV"
  fi
  stamp="$VENV/.requirements-$name"
  lists="$VENV/requirements"
  requirement_lists "$lists"
  want="$(cat "$lists"/{build,demo,test}.txt | cksum)"
  [ ! -f "$stamp" ] || have="$(cat "$stamp")"
  if [ "$want" != "$have" ]; then
    say "installing the packages of requirements/$name.txt (torch is large; minutes on a slow line)"
    run_logged packages "$VENV/bin/python" -m pip install --disable-pip-version-check -r "$lists/$name.txt"
    printf '%s\n' "$want" >"$stamp"
  fi
  PATH="$VENV/bin:$PATH"
  export PATH VIRTUAL_ENV="$VENV"
}

# Editable: tests and demo run from this checkout, which then needs its extension beside the Python files.
build_package() {
  say "building ringcomm (a minute or two at first)"
  run_logged build "$VENV/bin/python" -m pip install --disable-pip-version-check --no-build-isolation --no-deps -e "$ROOT"
  (cd / && "$VENV/bin/python" -c 'from ringcomm import _load; _load.extension()' 2>"$LOGS/load.log") ||
    fail "ringcomm was built but cannot be loaded: $(tail -n 1 "$LOGS/load.log")"
}
