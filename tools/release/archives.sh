#!/bin/sh
# Builds release archives, Debian packages and their checksums. check.sh then tests them on systems without Rust.
#
#   tools/release/archives.sh [--out DIR] [--built DIR] TARGET...
#
#   TARGET       x86_64-unknown-linux-gnu, aarch64-unknown-linux-gnu, x86_64-unknown-linux-musl, aarch64-unknown-linux-musl,
#                x86_64-pc-windows-gnu
#   --out DIR    the output folder (dist)
#   --built DIR  builds nothing and packs the files that cargo has put into this folder
#
# Debian's gcc-aarch64-linux-gnu, gcc-mingw-w64-x86-64, musl-tools and zip provide the tools for the other targets.
set -eu

out=dist built=''
while [ $# -gt 0 ]; do
  case $1 in
    --out | --built)
      [ $# -ge 2 ] || { echo "$0: $1 needs a value" >&2; exit 2; }
      case $1 in --out) out=$2 ;; --built) built=$2 ;; esac
      shift 2
      ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "$0: unknown option $1; see $0 --help" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { echo "$0: expected a target; see $0 --help" >&2; exit 2; }
absolute() { case $1 in '' | /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
out=$(absolute "$out") built=$(absolute "$built")
mkdir -p "$out"

cd "$(dirname "$0")/../.."
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
folder=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
# tools/build.rs would make a program for the builder's version of the GNU C library.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS=-Clink-arg=-Wl,-z,nopack-relative-relocs
# Equal files give equal archives.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints the licence of every crate in the program and the library, from the sources that cargo downloaded.
licences() {
  registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
  cargo tree --locked --quiet -p waterline-tools -p waterline-ffi -e normal --target "$1" --prefix none --format '{p} {l}' |
    sed -e 's/ (\*)$//' -e '/(\//d' -e '/^$/d' | sort -u | while read -r name version licence; do
    printf '\n==== %s %s: %s\n' "$name" "$version" "$licence"
    find "$registry"/*/"$name-${version#v}" -maxdepth 1 -type f \
      \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) >"$work/files"
    # Crates under MIT or Apache-2.0 are used under MIT.
    if grep -qi mit "$work/files"; then sed -i '/apache/Id' "$work/files"; fi
    while read -r file; do cat "$file"; echo; done <"$work/files"
  done
}

# Prints the newest version of the GNU C library among the symbols in its input.
newest_glibc() { sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1; }

# Makes a package from a staged folder, whose files go below /usr.
package() {
  root=$work/package
  mkdir -p "$root/DEBIAN" "$root/usr/share/doc/waterline"
  cp -a "$1/bin" "$1/include" "$1/lib" "$root/usr/"
  cp "$1/README.md" "$1/THIRD-PARTY" "$root/usr/share/doc/waterline/"
  cp -r "$1/examples" "$root/usr/share/doc/waterline/"
  cp "$1/LICENSE" "$root/usr/share/doc/waterline/copyright"
  cat >"$root/DEBIAN/control" <<EOF
Package: waterline
Version: $version
Architecture: $2
Maintainer: waterline
Section: science
Priority: optional
Depends: libc6 (>= $3), libgcc-s1
Description: recurrent and hybrid language models in fixed memory
 A program and a C library that run language models on CPUs and NVIDIA GPUs.
EOF
  echo 'activate-noawait ldconfig' >"$root/DEBIAN/triggers"
  dpkg-deb --build --root-owner-group -Zgzip "$root" "$out/waterline_${version}_$2.deb" >/dev/null
  rm -r "$root"
}

for target in "$@"; do
  # Static programs need no C library, and neither would a program that links waterline's library.
  binutils='' debian='' program=waterline library=''
  case $target in
    x86_64-unknown-linux-gnu) debian=amd64 library=yes ;;
    aarch64-unknown-linux-gnu) debian=arm64 library=yes binutils=aarch64-linux-gnu- ;;
    *-unknown-linux-musl) ;;
    x86_64-pc-windows-gnu) program=waterline.exe library=yes binutils=x86_64-w64-mingw32- ;;
    *) echo "$0: unknown target $target; see $0 --help" >&2; exit 2 ;;
  esac
  name=waterline-$version-$target
  stage=$work/$name
  mkdir -p "$stage/bin"
  if [ -z "$built" ]; then
    if command -v rustup >/dev/null; then rustup --quiet target add "$target"; fi
    cargo build --quiet --locked --release --target "$target" -p waterline-tools
  fi
  install -m 755 "${built:-$folder/$target/release}/$program" "$stage/bin/"
  if [ -n "$library" ]; then
    ffi/install --prefix "$stage" --target "$target" ${built:+--built "$built"} >/dev/null
    # mingw-w64's strip rejects Rust's objects without sections.
    [ -z "$debian" ] || "${binutils}strip" --strip-debug "$stage/lib/libwaterline.a"
    find "$stage" \( -name '*.so.*' -o -name '*.dll' \) -exec "${binutils}strip" --strip-unneeded {} +
  fi
  cp -r README.md LICENSE tools/release/examples "$stage/"
  licences "$target" >"$stage/THIRD-PARTY"
  find "$stage" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
  if [ "$program" = waterline.exe ]; then
    rm -f "$out/$name.zip"
    (cd "$work" && zip -qrX "$out/$name.zip" "$name")
  else
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
  fi
  [ -z "$debian" ] || package "$stage" "$debian" "$("${binutils}objdump" -T "$stage/bin/waterline" "$stage"/lib/*.so.* | newest_glibc)"
  rm -r "$stage"
done
cd "$out"
find . -maxdepth 1 -name 'waterline[-_]*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS
ls -l
