#!/bin/sh
# Unpacks the archives of archives.sh on systems without Rust and uses them as people do: a completion, a conversation through a pipe,
# and the C example of the documents, linked with the archive's library. Must run as root on Debian.
#
#   tools/release/check.sh DIR [SUITE]
#
#   DIR     the output folder of archives.sh
#   SUITE   the Debian in which programs for the GNU C library run (stable)
#
# Debian's debootstrap makes an x86-64 system with a C compiler. Programs for 64-bit ARM run under qemu-user-static with the C library
# of an ARM system, static programs in an empty folder, programs for Windows under wine. Each check is skipped if its tool is missing.
set -eu

[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
archives=$(cd "$1" && pwd) suite=${2:-stable}
example=$(cd "$(dirname "$0")/../../ffi/examples/c" && pwd)/chat.c
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$archives" && sha256sum --quiet -c SHA256SUMS)

fail() { echo "$0: $*" >&2; exit 1; }
# Finds the archive of a target; fails if it was not made or a tool to run it is missing.
archive() {
  target=$1 name=''
  shift
  for file in "$archives"/waterline-*-"$target".*; do
    if [ -f "$file" ]; then name=$(basename "${file%.tar.gz}" .zip); fi
  done
  [ -n "$name" ] || return 1
  for tool in "$@"; do
    command -v "$tool" >/dev/null || { echo "$target: skipped without $tool"; return 1; }
  done
}
hello='Hello! My name is Anna.\nWhat is my name?\n'
# Checks that a program that chats like the library's example remembers the name.
talks() {
  # shellcheck disable=SC2059 # the lines are the format
  printf "$hello" | "$@" >"$work/said" || fail "$*: failed"
  tail -n 1 "$work/said" | grep -q Anna || fail "$*: said $(cat "$work/said")"
}
# Checks that the program completes a text, chats, and prints the reason why it uses no GPU.
program() {
  "$@" run -p hello -n 8 >"$work/said" || fail "$*: failed"
  grep -q '[a-z]' "$work/said" || fail "$*: said nothing"
  talks "$@" chat
  if "$@" run -p hello --device cuda 2>"$work/said"; then fail "$*: found a GPU"; fi
  grep '^waterline: no GPU: ' "$work/said" || fail "$*: said $(cat "$work/said")"
}

if archive x86_64-unknown-linux-gnu debootstrap; then
  root=$work/x86_64 at=/opt/$name
  debootstrap --variant=minbase --include=gcc,libc6-dev,pkg-config "$suite" "$root" >"$work/log" || fail "$(tail "$work/log")"
  tar -C "$root/opt" -xzf "$file"
  cp "$example" "$root/opt/"
  program chroot "$root" "$at/bin/waterline"
  flags="PKG_CONFIG_PATH=$at/lib/pkgconfig pkg-config --cflags --libs waterline"
  chroot "$root" sh -euc "cd /opt; cc chat.c -o shared \$($flags) -Wl,-rpath,$at/lib
    cc chat.c -o static -I$at/include $at/lib/libwaterline.a \$($flags --static | sed 's/.*-lwaterline//')"
  talks chroot "$root" /opt/shared
  talks chroot "$root" /opt/static
  rm -r "$root$at"
  cp "$archives"/waterline_*_amd64.deb "$root/opt/"
  chroot "$root" sh -euc 'cd /opt; dpkg -i waterline_*.deb; cc chat.c -o packaged $(pkg-config --cflags --libs waterline)' >"$work/log"
  program chroot "$root" waterline
  talks chroot "$root" /opt/packaged
  chroot "$root" dpkg -r waterline >"$work/log"
  if chroot "$root" sh -c 'command -v cargo || command -v rustc || command -v waterline'; then fail "$root is not clean"; fi
  echo "$target: all right in Debian $(cat "$root/etc/debian_version")"
fi

if archive aarch64-unknown-linux-gnu debootstrap qemu-aarch64-static aarch64-linux-gnu-gcc; then
  root=$work/aarch64
  debootstrap --variant=minbase --arch=arm64 --foreign "$suite" "$root" >"$work/log" || fail "$(tail "$work/log")"
  tar -C "$work" -xzf "$file"
  program qemu-aarch64-static -L "$root" "$work/$name/bin/waterline"
  aarch64-linux-gnu-gcc "$example" -o "$work/shared" -I"$work/$name/include" -L"$work/$name/lib" -lwaterline -Wl,-rpath,"$work/$name/lib"
  talks qemu-aarch64-static -L "$root" "$work/shared"
  dpkg-deb -x "$archives"/waterline_*_arm64.deb "$root"
  cmp "$root/usr/bin/waterline" "$work/$name/bin/waterline"
  echo "$target: all right under qemu with the C library of Debian $suite"
fi

for machine in x86_64 aarch64; do
  qemu=''
  [ "$machine" = "$(uname -m)" ] || qemu=qemu-$machine-static
  if archive "$machine-unknown-linux-musl" $qemu; then
    root=$work/empty-$machine
    mkdir "$root"
    tar -C "$root" -xzf "$file"
    [ -z "$qemu" ] || cp "$(command -v "$qemu")" "$root/"
    program chroot "$root" ${qemu:+"/$qemu"} "/$name/bin/waterline"
    echo "$target: all right in an empty folder"
  fi
done

if archive x86_64-pc-windows-gnu wine unzip x86_64-w64-mingw32-gcc; then
  export WINEPREFIX="$work/wine" WINEDEBUG=-all
  wineboot -i >"$work/log" 2>&1
  unzip -q "$file" -d "$work"
  # wine 8.0 lacks the library that Rust's standard library gets random numbers from.
  cat >"$work/random.c" <<'EOF'
int SystemFunction036(void *, unsigned);
__declspec(dllexport) int ProcessPrng(unsigned char *to, unsigned long long bytes) { return SystemFunction036(to, bytes); }
EOF
  x86_64-w64-mingw32-gcc -shared "$work/random.c" -o "$work/$name/bin/bcryptprimitives.dll" -ladvapi32
  WINEPATH=$(winepath -w "$work/$name/bin")
  export WINEPATH
  program wine "$work/$name/bin/waterline.exe"
  x86_64-w64-mingw32-gcc "$example" -o "$work/shared.exe" -I"$work/$name/include" -L"$work/$name/lib" -lwaterline
  x86_64-w64-mingw32-gcc "$example" -o "$work/static.exe" -I"$work/$name/include" "$work/$name/lib/libwaterline.a" \
    $(sed -n 's/^Libs.private: //p' "$work/$name/lib/pkgconfig/waterline.pc")
  talks wine "$work/shared.exe"
  talks wine "$work/static.exe"
  wineserver -k || true
  echo "$target: all right under $(wine --version)"
fi
du -h "$archives"/waterline*
