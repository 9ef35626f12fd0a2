#!/bin/sh
# The committed mwctl.h is what src/capi gives, and every public header compiles by itself, in each
# language version, with each compiler and all warnings as errors.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/.cache/bin:$PATH
export PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/scripts/header.sh" --check

# Whoever has a context may have been forked: tests/lib/fork.c makes each such call in a child.
calls=$(tr '\n' ' ' <"$root/include/mwctl.h" | grep -o 'mwctl_[a-z_0-9]*(struct mwctl_context \*ctx' | sed 's/(.*//')
[ -n "$calls" ] || { echo "$0: no call in mwctl.h takes a context" >&2; exit 1; }
for call in $calls; do
	grep -q "[( ]$call(ctx" "$root/tests/lib/fork.c" || {
		echo "$0: tests/lib/fork.c does not call $call" >&2
		exit 1
	}
done

warnings='-Wall -Wextra -Wpedantic -pedantic-errors -Wshadow -Wconversion -Wundef -Wcast-qual -Werror'
count=0

# compiles COMPILER STANDARD SUFFIX HEADER [FLAG…]: twice over, for the guard must hold.
compiles() {
	compiler=$1 standard=$2 suffix=$3 header=$4
	shift 4
	printf '#include <%s>\n#include <%s>\n' "$header" "$header" >"$work/alone.$suffix"
	# Unquoted: they are several words.
	# shellcheck disable=SC2086
	"$compiler" "-std=$standard" $warnings "$@" -I"$root/include" -fsyntax-only "$work/alone.$suffix" || {
		echo "$0: $header is not clean with $compiler -std=$standard" >&2
		exit 1
	}
	count=$((count + 1))
}

# The control: the flags see a fault in a header that is found as ours are.
mkdir "$work/include"
echo 'static int unused(long wide) { return wide; }' >"$work/include/fault.h"
for compiler in gcc clang; do
	echo '#include <fault.h>' >"$work/control.c"
	# shellcheck disable=SC2086
	if "$compiler" -std=c99 $warnings -I"$work/include" -fsyntax-only "$work/control.c" 2>/dev/null; then
		echo "$0: $compiler does not see a fault in a header" >&2
		exit 1
	fi
done

for path in "$root"/include/*.h; do
	for standard in c99 c11 c17; do
		compiles gcc $standard c "${path##*/}" -Wstrict-prototypes
		compiles clang $standard c "${path##*/}" -Wstrict-prototypes
	done
	for standard in c++11 c++14 c++17 c++20; do
		compiles g++ $standard cpp "${path##*/}" -Wold-style-cast
		compiles clang++ $standard cpp "${path##*/}" -Wold-style-cast
	done
done
# The macros of mwctl_compat.h stand where the calls stood, in both languages.
cat >"$work/use.c" <<'END'
#include <mwctl_compat.h>
int use(struct ibv_context *device, void *memory);
int use(struct ibv_context *device, void *memory)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_mw_bind bind;
	struct ibv_wc wc;
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_cq *cq = ibv_create_cq(device, 8, memory, NULL, 0);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mr *other = ibv_reg_mr_iova(pd, memory, 8, 0, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE) || ibv_bind_mw(qp, mw, &bind) || ibv_poll_cq(cq, 1, &wc) ||
	       ibv_dealloc_mw(mw) || ibv_dereg_mr(mr) || ibv_dereg_mr(other) || ibv_resize_cq(cq, 9) ||
	       ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(device);
}
END
cp "$work/use.c" "$work/use.cpp"
for how in 'gcc -std=c99' 'clang -std=c17' 'g++ -std=c++11' 'clang++ -std=c++20'; do
	case $how in *++*) suffix=cpp ;; *) suffix=c ;; esac
	for strip in -UMWCTL_COMPAT_STRIP_REMOTE -DMWCTL_COMPAT_STRIP_REMOTE; do
		# shellcheck disable=SC2086
		$how -Wall -Wextra -Wpedantic -Werror $strip -I"$root/include" -fsyntax-only "$work/use.$suffix" || {
			echo "$0: the macros of mwctl_compat.h are not clean with $how" >&2
			exit 1
		}
		count=$((count + 1))
	done
done

# The newest standard under the name that this compiler knows, or nothing.
newest() {
	echo 'int main() {}' >"$work/newest.cpp"
	for standard in c++23 c++2b; do
		! "$1" -std=$standard -fsyntax-only "$work/newest.cpp" 2>/dev/null || { echo $standard; return; }
	done
}
for path in "$root"/include/*.hpp; do
	for compiler in g++ clang++; do
		for standard in c++17 c++20 $(newest $compiler); do
			compiles $compiler "$standard" cpp "${path##*/}" -Wold-style-cast -Wsign-conversion
			compiles $compiler "$standard" cpp "${path##*/}" -Wold-style-cast -fno-exceptions -fno-rtti
		done
	done
done

# mwctl.hpp leaves no macro behind but its guard.
macros() {
	echo "#include <$1>" | g++ -std=c++17 -I"$root/include" -dM -E -x c++ - | grep -i '^#define _*mwctl' | sort
}
macros mwctl.h >"$work/macros"
left=$(macros mwctl.hpp | comm -13 "$work/macros" -)
[ "$left" = "#define MWCTL_HPP " ] || {
	echo "$0: mwctl.hpp leaves macros behind: $left" >&2
	exit 1
}

# Every number of mwctl.h has its name in mwctl.hpp; how a queue is polled is an option there too.
numbers=$(sed -n 's/.*\(MWCTL_[A-Z]*_[A-Z_]*\) = [0-9]*,$/\1/p' "$root/include/mwctl.h" | grep -v '^MWCTL_POLLING_')
[ "$(echo "$numbers" | wc -l)" -gt 60 ] || {
	echo "$0: the numbers of mwctl.h were not found" >&2
	exit 1
}
for name in $numbers; do
	grep -qw "$name" "$root/include/mwctl.hpp" || {
		echo "$0: mwctl.hpp lacks $name" >&2
		exit 1
	}
done
echo "mwctl.h is what src/capi gives; $count compilations without a warning"
