#!/bin/sh
# Builds the verbs crate with what libclang.sh says, in each situation that a machine can be in:
# libclang 14 or 15 alone, a newer one beside it, a newer one alone, none with pip, none at all.
#
# The newer library is downloaded and unpacked into the cache, not installed, and found through
# LD_LIBRARY_PATH. Libraries of the machine are hidden in a mount namespace of a child process
# (an empty file is bound over each); outside of it nothing changes. Needs root or user namespaces
# for that. Each situation has its control: without libclang.sh the build must fail there.
#
# Exit status 77: this machine could not play a single situation through.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
script=$root/scripts/libclang.sh
self=$root/scripts/check-libclang.sh
newer=${MWCTL_CACHE:-$root/.cache}/libclang-newer
work=${MWCTL_LIBCLANG_CHECK:-}
wheel=$work/cache/libclang/libclang.so
failed=0

fail() {
	echo "FAIL: $*" >&2
	exit 1
}

# ---- parts that run inside of a situation ----

# Hides the machine's libclang from major version $1 on, in this mount namespace.
hide_from() {
	LD_LIBRARY_PATH='' "$script" --list | while read -r major file; do
		[ "$major" -lt "$1" ] || mount --bind /dev/null "$file"
	done
}

build() {
	# What bindgen made before must not serve for this.
	cargo clean --quiet -p rdma-sys
	cargo build --quiet -p mwctl-verbs "$@"
}

# Builds as libclang.sh says and keeps the bindings under the name $1.
build_as_told() {
	(
		eval "$told"
		build
	) || fail "$1: the build failed with: $told"
	bindings=$(find "$CARGO_TARGET_DIR/debug/build" -path '*/rdma-sys-*/out/bindings.rs')
	[ -f "$bindings" ] || fail "$1: no bindings were made"
	cp "$bindings" "$work/$1.rs"
}

build_without_being_told() {
	if build 2>"$work/control"; then
		fail "$1: the build passes without libclang.sh too, so this proves nothing"
	fi
	grep -q "$2" "$work/control" || {
		cat "$work/control" >&2
		fail "$1: the control build failed for another reason than: $2"
	}
}

expect() {
	# shellcheck disable=SC2254 # a pattern
	case $told in
	$2) ;;
	*) fail "$1: libclang.sh says '$told', not like '$2'" ;;
	esac
}

situation() {
	told=
	case $1 in
	fitting)
		hide_from 16
		told=$("$script")
		expect "$1" ''
		build_as_told "$1"
		;;
	beside)
		told=$("$script")
		expect "$1" "*LIBCLANG_PATH='/usr/*"
		build_without_being_told "$1" 'panicked at'
		build_as_told "$1"
		;;
	alone)
		hide_from 0
		rm -f "$wheel"
		told=$("$script")
		expect "$1" "*LIBCLANG_PATH='$wheel'*BINDGEN_EXTRA_CLANG_ARGS=*"
		build_without_being_told "$1" 'panicked at'
		build_as_told "$1"
		;;
	none)
		hide_from 0
		told=$("$script")
		expect "$1" "*LIBCLANG_PATH='$wheel'*BINDGEN_EXTRA_CLANG_ARGS=*"
		build_without_being_told "$1" 'Unable to find libclang'
		build_as_told "$1"
		;;
	nothing)
		hide_from 0
		rm -f "$wheel"
		# A machine without pip: every command but Python's and pip's own.
		mkdir "$work/bin"
		for command in /usr/bin/* /bin/*; do
			case ${command##*/} in
			python* | pip*) ;;
			*) ln -sf "$command" "$work/bin/" ;;
			esac
		done
		for how in no-pip no-network; do
			status=0
			case $how in
			no-pip) told=$(PATH=$work/bin "$script" 2>"$work/said") || status=$? ;;
			no-network) told=$(PIP_NO_INDEX=1 "$script" 2>"$work/said") || status=$? ;;
			esac
			[ "$status" = 3 ] || fail "$how: libclang.sh ends with $status, not 3"
			[ -z "$told" ] || fail "$how: libclang.sh says '$told'"
			grep -q 'features declared' "$work/said" || fail "$how: no word of the way out"
		done
		build --no-default-features --features declared || fail "$1: the build failed"
		;;
	esac
	echo "ok: $1"
}

if [ $# -eq 2 ] && [ "$1" = --inside ]; then
	situation "$2"
	exit 0
fi

# ---- the machine's part ----

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MWCTL_LIBCLANG_CHECK="$work" MWCTL_CACHE="$work/cache"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/libclang-check"
unset LIBCLANG_PATH BINDGEN_EXTRA_CLANG_ARGS LD_LIBRARY_PATH LIBRARY_PATH LLVM_CONFIG_PATH
cd "$root"

if unshare --mount true 2>/dev/null; then
	inside='unshare --mount'
elif unshare --map-root-user --mount true 2>/dev/null; then
	inside='unshare --map-root-user --mount'
else
	inside=
fi

# Unpacks the first newer libclang that Debian has.
get_newer() {
	for version in 16 17 18 19; do
		folder=$newer/$version
		if [ ! -d "$folder" ]; then
			mkdir -p "$newer/debs"
			(cd "$newer/debs" && apt-get -qq -o APT::Sandbox::User=root download \
				"libclang1-$version" "libllvm$version") 2>/dev/null || continue
			for deb in "$newer/debs"/*.deb; do
				dpkg -x "$deb" "$folder.part"
			done
			rm -rf "$newer/debs"
			mv "$folder.part" "$folder"
		fi
		find "$folder/usr/lib" -name "libclang-$version.so.$version*" -type f -exec dirname {} \; |
			head -n 1
		return
	done
}

play() {
	# Unquoted: it is several words.
	# shellcheck disable=SC2086
	if $inside "$self" --inside "$1"; then
		played="$played $1"
	else
		failed=1
	fi
}

played=
packages=$(dpkg-query -W 2>/dev/null | cksum)
machine=$("$script" --list)
echo "this machine's libclang: ${machine:-none}"
fitting=$(echo "$machine" | sed -n '/^1[45] /p')
newer_folder=$(get_newer)
[ -n "$newer_folder" ] || echo "not played: beside and alone, for no newer libclang can be downloaded"
[ -n "$inside" ] || echo "not played: alone, none and nothing, for libraries can't be hidden here"
[ -n "$fitting" ] || echo "not played: fitting and beside, for no libclang 14 or 15 is installed"

if [ -n "$fitting" ] && { [ -n "$inside" ] || [ "$fitting" = "$machine" ]; }; then
	play fitting
fi
if [ -n "$newer_folder" ]; then
	export LD_LIBRARY_PATH="$newer_folder"
	[ -z "$fitting" ] || play beside
	[ -z "$inside" ] || play alone
	unset LD_LIBRARY_PATH
fi
if [ -n "$inside" ]; then
	play none
	play nothing
fi

# One set of bindings, whichever library made them.
first=
for bindings in "$work"/*.rs; do
	[ -f "$bindings" ] || continue
	first=${first:-$bindings}
	if ! cmp "$first" "$bindings"; then
		failed=1
	fi
done

if [ "$("$script" --list)" != "$machine" ] || [ "$(dpkg-query -W 2>/dev/null | cksum)" != "$packages" ]; then
	echo "FAIL: the machine is not as it was" >&2
	failed=1
fi
[ $failed -eq 0 ] || exit 1
if [ -z "$played" ]; then
	echo "no situation could be played through on this machine"
	exit 77
fi
echo "played:$played"
