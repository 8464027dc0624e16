#!/usr/bin/env bash
# Makes .venv/: everything that `make eval` and `make test` need, from the package registries alone.
#
# Two ways, one result. Where a ROS 2 distribution is sourced (ROS_DISTRO is set and rclpy imports), both packages are
# built with colcon against it. Elsewhere ROS 2 Jazzy comes as wheels, and the environment itself is the ament prefix.
# Each step leaves a stamp with the hash of what it was made from, so that a second run does only what changed.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$PWD/.venv
python=${PYTHON:-python3}
stamps=$venv/.stamps

say() { printf '[setup] %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

have_distribution() { [ -n "${ROS_DISTRO:-}" ] && "$python" -c 'import rclpy' >/dev/null 2>&1; }

# step NAME SENTENCE FILES... -- COMMAND...: runs COMMAND unless its stamp holds the hash of FILES.
step() {
  local name=$1 sentence=$2; shift 2
  local files=()
  while [ "$1" != -- ]; do files+=("$1"); shift; done
  shift
  local hash
  hash=$( { echo "$mode $version"; find "${files[@]}" -name __pycache__ -prune -o -type f -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -c1-32)
  [ "$(cat "$stamps/$name" 2>/dev/null)" = "$hash" ] && return 0
  say "$sentence"
  local start=$SECONDS log=$venv/setup-$name.log
  if ! "$@" >"$log" 2>&1; then
    tail -n 25 "$log" >&2
    fail "the step '$name' failed; its whole output is in $log"
  fi
  say "  $name: done in $((SECONDS - start)) s"
  echo "$hash" >"$stamps/$name"
}

system_packages() {
  command -v dpkg-query >/dev/null || { say 'not Debian or Ubuntu: see environment/debian.txt for what is needed'; return 0; }
  local missing=() name
  for name in $(grep -v '^#' environment/debian.txt); do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local install="apt-get install -y --no-install-recommends ${missing[*]}" as_root=
  [ "$(id -u)" = 0 ] || as_root='sudo -n'
  if $as_root true 2>/dev/null; then
    say "system packages for building and for drawing without a screen: ${missing[*]} (under a minute)"
    if $as_root apt-get update -qq >/dev/null 2>&1 \
      && DEBIAN_FRONTEND=noninteractive $as_root $install -qq >/dev/null 2>&1; then
      return 0
    fi
  fi
  say "these system packages are missing; install them with:  sudo $install"
  command -v g++ >/dev/null && command -v cmake >/dev/null || fail 'g++ and cmake are needed to build openeta_msgs'
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" -c environment/constraints.txt; }

# The wheels' CMake exports name folders of the machine that built them; CMake stops at a path that does not exist.
repair_cmake_exports() {
  "$venv/bin/python" - <<'P'
import pathlib, re, sys, sysconfig
import numpy
for path in pathlib.Path(sys.prefix, 'share').rglob('*.cmake'):
    text = path.read_text()
    new = re.sub(r'/opt/python/[^/;"]+/lib/python[0-9.]+/site-packages/numpy/_core/include', numpy.get_include(), text)
    new = re.sub(r'/opt/python/[^/;"]+/include/python[0-9.]+', sysconfig.get_path('include'), new)
    if new != text:
        path.write_text(new)
P
}

colcon_build() {  # colcon_build PACKAGE...: into the environment, which is (or becomes) an ament prefix
  # --symlink-install: the package itself is used from this checkout, so that an edit is seen at once.
  AMENT_PREFIX_PATH=$venv${AMENT_PREFIX_PATH:+:$AMENT_PREFIX_PATH} CMAKE_PREFIX_PATH=$venv${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH} \
    PATH=$venv/bin:$PATH "$venv/bin/python" -m colcon --log-base "$venv/log" build --base-paths . openeta_msgs \
    --build-base "$venv/build" --install-base "$venv" --merge-install --symlink-install --packages-select "$@" \
    --cmake-args -DBUILD_TESTING=OFF -DPython3_EXECUTABLE="$venv/bin/python"
}

# --no-compile: of 37,000 modules few are ever imported, and those are compiled then; all of them take over a minute.
ros_wheels() { pip install --no-compile -r environment/requirements-ros.txt; }
python_packages() {
  pip install --no-compile --no-build-isolation -e ".[$extras]" \
    && pip install --no-compile --no-deps -r environment/requirements-descriptions.txt
}
build_messages() { [ "$mode" != wheels ] || repair_cmake_exports; colcon_build openeta_msgs; }

"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
  || fail "Python 3.10 to 3.13 is needed, and '$python' is not; name another one: make setup PYTHON=python3.11"
version=$("$python" -VV 2>&1 | tr '\n' ' ')
extras=genesis,mujoco,robots,test
if have_distribution; then mode=$ROS_DISTRO; else mode=wheels; fi
if [ "$mode" = wheels ] && [ "$(uname -sm)" != 'Linux x86_64' ]; then
  fail "ROS 2 comes as wheels for Linux on x86-64 only, and this is $(uname -sm); source a ROS 2 distribution first"
fi

mkdir -p "$stamps" 2>/dev/null || true
[ -x "$venv/bin/python" ] && [ "$(cat "$stamps/venv" 2>/dev/null)" = "$mode $version" ] || {
  [ -e "$venv/bin" ] && say 'the Python or the ROS 2 to build against changed: .venv is made anew'
  rm -rf "$venv"
  say "setting up .venv (ROS 2: $mode); the first time takes about four minutes and 5 GB"
  system_packages
  "$python" -m venv $([ "$mode" = wheels ] || echo --system-site-packages) "$venv" \
    || fail "'$python -m venv' failed (on Debian and Ubuntu it is in the package python3-venv)"
  mkdir -p "$stamps"
  echo "$mode $version" >"$stamps/venv"
}

step pip '1/5 pip and the build tools' environment/constraints.txt -- pip install -U pip 'setuptools<80' wheel
if [ "$mode" = wheels ]; then
  step ros '2/5 ROS 2 Jazzy from wheels, with its interface generators (about half a minute, 0.3 GB)' \
    environment/requirements-ros.txt environment/constraints.txt -- ros_wheels
fi
# Side by side: the one waits for the disk, the other for the processors. A group of its own, which can be ended.
set -m
step messages '3/5 building openeta_msgs with colcon (two to three minutes, beside 4/5)' \
  openeta_msgs environment/setup.sh -- build_messages &
messages=$!
set +m
trap 'kill -- -$messages 2>/dev/null || true' EXIT
step python '4/5 PyTorch, Genesis, MuJoCo and the Python packages (two to three minutes, 4 GB)' \
  setup.py setup.cfg environment/constraints.txt environment/requirements-descriptions.txt -- python_packages
wait $messages || exit 1
trap - EXIT
step package '5/5 building openeta_ros with colcon' \
  setup.py setup.cfg package.xml launch config examples -- colcon_build openeta_ros
