#!/usr/bin/env bash
# Builds an emulated AArch64 board in a folder: arm64 Debian packages unpacked, AArch64 wheels of TVM,
# and a `python` that runs in them under qemu. No chroot, no binfmt, nothing installed on this machine.
#   tests/devices/aarch64.sh DIR     prints the path of the board's Python when it can import TVM
# Needed here: apt (Debian or Ubuntu), pip, dpkg-deb, qemu-aarch64-static.
set -eu
ROOT=$(mkdir -p "$1" && cd "$1" && pwd)
PYTHON=$ROOT/python
PACKAGES="python3.11-minimal libpython3.11-stdlib libstdc++6 libgcc-s1 zlib1g libexpat1 libssl3
    libffi8 libzstd1 libxml2 libtinfo6 libatomic1 libgomp1"
WHEELS="apache-tvm==0.27.0.post1 apache-tvm-ffi>=0.1.14,<0.1.15 numpy psutil cloudpickle tornado
    ml_dtypes typing_extensions"

for tool in apt-get dpkg-deb qemu-aarch64-static; do
    command -v $tool >/dev/null || { echo "aarch64.sh: $tool is missing" >&2; exit 3; }
done

if ! [ -e "$ROOT/unpacked" ]; then
    mkdir -p "$ROOT/apt/lists/partial" "$ROOT/apt/archives/partial" "$ROOT/sys"
    : > "$ROOT/apt/status"
    # Lists and archives of its own, so that this machine's packages stay as they are.
    OPTIONS="-q -o APT::Architecture=arm64 -o APT::Architectures::=arm64
        -o Dir::State::lists=$ROOT/apt/lists -o Dir::State::status=$ROOT/apt/status
        -o Dir::Cache::archives=$ROOT/apt/archives -o APT::Sandbox::User=root
        -o Dir::Etc::sourceparts=$ROOT/apt/none -o Dir::Etc::sourcelist=$ROOT/apt/sources.list"
    echo "deb ${DEBIAN_MIRROR:-http://deb.debian.org/debian} bookworm main" > "$ROOT/apt/sources.list"
    apt-get $OPTIONS update >&2
    apt-get $OPTIONS --download-only --no-install-recommends -y install $PACKAGES >&2
    for archive in "$ROOT"/apt/archives/*.deb; do
        dpkg-deb -x "$archive" "$ROOT/sys"
    done
    touch "$ROOT/unpacked"
fi
if ! [ -e "$ROOT/wheels" ]; then
    printf '%s\n' $WHEELS > "$ROOT/wheels.txt"
    python3 -m pip install --quiet --no-deps --target "$ROOT/site" --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 \
        --platform manylinux2014_aarch64 --only-binary :all: -r "$ROOT/wheels.txt" >&2
    touch "$ROOT/wheels"
fi
# What a child process starts as `sys.executable` is this wrapper, too.
cat > "$PYTHON" <<WRAPPER
#!/bin/sh
export PYTHONHOME=$ROOT/sys/usr PYTHONPATH=$ROOT/site TVM_NUM_THREADS=\${TVM_NUM_THREADS:-1}
exec qemu-aarch64-static -L $ROOT/sys -0 $PYTHON $ROOT/sys/usr/bin/python3.11 "\$@"
WRAPPER
chmod +x "$PYTHON"
"$PYTHON" -c 'import platform, tvm; assert platform.machine() == "aarch64"' >&2
echo "$PYTHON"
