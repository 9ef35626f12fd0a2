#!/usr/bin/env bash
# Sets up, builds, and runs the main job: a server with four clients, of which one goes bad.
set -euo pipefail

usage() {
	cat <<'END'
usage: scripts/demo.sh [--rxe [--kernel 6.1|6.12]] [ARG…]

Runs examples-c/rogue_client on the device in the process, or with --rxe on real verbs: a
Debian kernel with soft-RoCE in a guest. The ARGs go to the program; --help among them shows
its own. MWCTL_BUILD_DIR is where it is built (build in the project).
END
}

rxe=no kernel=6.1
while [[ $# -gt 0 ]]; do
	case $1 in
	--rxe) rxe=yes; shift ;;
	--kernel)
		[[ $# -ge 2 ]] || { usage >&2; exit 2; }
		kernel=$2
		shift 2
		;;
	-h) usage; exit 0 ;;
	--) shift; break ;;
	*) break ;;
	esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${MWCTL_BUILD_DIR:-$root/build}
"$root/scripts/setup.sh" build
program=$build/examples-c/rogue_client
[[ -x $program ]] || echo "demo: building the library, the device in the process and the program in $build;" \
	"the first time that takes minutes" >&2
"$root/cmake/build.sh" "$build" mwctl_sim_library rogue_client

if [[ $rxe == yes ]]; then
	exec "$root/scripts/rxe.sh" --kernel "$kernel" --time-limit 900 -- "$program" "$@"
fi
LD_LIBRARY_PATH=$build/lib/mwctl-sim exec "$program" "$@"
