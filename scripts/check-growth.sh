#!/bin/sh
# This release and a next one get on with each other. The next one is made here, from a scratch copy: a
# field more at the end of an option struct and of an answer, and a function more under a version of
# its own. Programs of either release run with the library of the other.
#
#   check-growth.sh BUILD_DIR
set -eu
LC_ALL=C
export LC_ALL

if [ $# -ne 1 ] || [ ! -f "$1/lib/libmwctl.so" ]; then
	echo "usage: $0 BUILD_DIR" >&2
	exit 2
fi
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/.cache/bin:$PATH
export PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_LIBRARY_PATH

die() {
	echo "$0: $*" >&2
	exit 1
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
major=${version%%.*}
minor=${version#*.}
minor=${minor%%.*}
next=$major.$((minor + 1)).0
node=MWCTL_$major.$((minor + 1))
newest=$(sed -n 's/^\(MWCTL_[0-9.]*\) {.*/\1/p' "$root/src/capi/libmwctl.map" | tail -n 1)

# ---- the next release ----

copy=$work/next
mkdir "$copy"
for part in Cargo.toml Cargo.lock cbindgen.toml cmake include man scripts sim src verbs; do
	cp -R "$root/$part" "$copy/"
done
cd "$copy"

# edit FILE AWK_PROGRAM: the program must change the file.
edit() {
	awk "$2" "$1" >"$work/edited"
	if cmp -s "$1" "$work/edited"; then
		die "$1 is not what this check expects: adapt it"
	fi
	cat "$work/edited" >"$1"
}

edit Cargo.toml "/^version = \"$version\"\$/ && !done { sub(/$version/, \"$next\"); done = 1 } { print }"
edit cbindgen.toml "/define MWCTL_VERSION_MINOR/ { \$3 = $((minor + 1)) } /define MWCTL_VERSION_PATCH/ { \$3 = 0 } { print }"
for struct in options info; do
	edit src/capi/types.rs "/^pub struct mwctl_domain_$struct \\{/ { inside = 1 }
		inside && /^}/ { print \"    pub grown: u64,\"; inside = 0 } { print }"
done
edit src/capi/domain.rs '
	/let reserve = if opts.reserve/ { print "        GROWN.store(opts.grown, std::sync::atomic::Ordering::SeqCst);" }
	/key_distance: figures.key_distance,/ { print "            grown: GROWN.load(std::sync::atomic::Ordering::SeqCst)," }
	{ print }
	END {
		print ""
		print "static GROWN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);"
		print ""
		print "/// What the option said."
		print "/// Never waits."
		print "#[unsafe(no_mangle)]"
		print "pub extern \"C\" fn mwctl_domain_grown(ctx: *mut mwctl_context, domain: mwctl_domain) -> u64 {"
		print "    let known = |core: &crate::context::Context| core.pool_figures(domain.id).map(|_| ());"
		print "    if enter(ctx, known) == Status::Ok { GROWN.load(std::sync::atomic::Ordering::SeqCst) } else { 0 }"
		print "}"
	}'
printf '\n%s {\n\tglobal:\n\t\tmwctl_domain_grown;\n} %s;\n' "$node" "$newest" >>src/capi/libmwctl.map
cbindgen --quiet --config cbindgen.toml --crate mwctl --output include/mwctl.h
scripts/check-symbols.sh --map >/dev/null

: >"$work/environment"
cmake/cargo.sh "$work/environment" cargo rustc --quiet --offline --lib --package mwctl --no-default-features \
	--features declared --crate-type staticlib --target-dir "$build/cargo-growth"
cmake/link.sh "$build/cargo-growth/debug/libmwctl.a" src/capi/libmwctl.map "$next" "$work/lib"
cd "$root"
readelf -W --dyn-syms "$work/lib/libmwctl.so" | grep -q "mwctl_domain_grown@@$node" ||
	die "the next library has no function under $node"
soname=$(readelf -dW "$work/lib/libmwctl.so" | sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p')
[ "$soname" = "libmwctl.so.$major" ] || die "the next library's soname is $soname"

# ---- programs of either release, with either library ----

compile() {
	output=$1 include=$2 lib=$3
	shift 3
	"${CC:-cc}" -std=c11 -Wall -Wextra -Werror -o "$work/$output" "$root/tests/consumer/growth.c" \
		-I"$include" "$@" -L"$lib" -lmwctl -libverbs
}
compile program "$root/include" "$build/lib"
compile next_program "$copy/include" "$work/lib" -DGROWN
compile next_caller "$copy/include" "$work/lib" -DGROWN -DNEW_CALL

count=0
# run LIB_FOLDER COMMAND [ARG…]
run() {
	lib=$1
	shift
	LD_LIBRARY_PATH=$lib:$build/lib/mwctl-sim "$@" || die "${1##*/} fails with the library in $lib"
	count=$((count + 1))
}
run "$build/lib" "$work/program" "$version"
run "$work/lib" "$work/program" "$next"
run "$work/lib" "$work/next_program" "$next"
run "$build/lib" "$work/next_program" "$version"
run "$work/lib" "$work/next_caller" "$next"
# A program that calls what this release lacks is refused by the loader, not in the middle of its work.
if LD_LIBRARY_PATH=$build/lib:$build/lib/mwctl-sim "$work/next_caller" "$version" 2>"$work/said"; then
	die "a program that calls the next release's function runs with this one"
fi
grep -q "version \`$node' not found" "$work/said" || die "the loader says: $(cat "$work/said")"

# Whole programs of this release.
"${CC:-cc}" -std=c11 -o "$work/consumer" "$root/tests/consumer/versions.c" -I"$root/include" \
	-L"$build/lib" -lmwctl
run "$work/lib" "$work/consumer" >"$work/said"
grep -qx "library $next" "$work/said" || die "the next library was not used: $(cat "$work/said")"
for name in bad_input grant_revoke; do
	[ ! -x "$build/tests/lib/$name" ] || run "$work/lib" "$build/tests/lib/$name" >"$work/said"
done
echo "$count runs of programs of $version and $next, with the library of either"
