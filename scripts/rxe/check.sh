#!/usr/bin/env bash
# Checks scripts/rxe.sh itself: what comes out of a guest, and how one ends.
#
#   scripts/rxe/check.sh [6.1|6.12]
set -euo pipefail

kernel=${1:-6.1}
rxe=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/rxe.sh
passed=0 failed=0

work=$(mktemp -d "${TMPDIR:-/tmp}/rxe-check.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Guests' temporary folders are made here, so that one left behind shows.
mkdir "$work/tmp"
export TMPDIR=$work/tmp

result() {
	if [[ $1 -eq 0 ]]; then
		echo "ok $2"
		passed=$((passed + 1))
	else
		echo "FAILED $2"
		sed 's/^/    /' "$work/out" "$work/err"
		failed=$((failed + 1))
	fi
}

# boot WANTED_STATUS ARGUMENTS…: runs a guest, its output goes to $work/out and $work/err.
boot() {
	local wanted=$1 status=0
	shift
	"$rxe" --kernel "$kernel" "$@" >"$work/out" 2>"$work/err" || status=$?
	[[ $status -eq $wanted && -z $(ls -A "$TMPDIR") ]]
}

# wait_for FILE TEXT: until the text turns up, for at most a minute.
wait_for() {
	local tries=600
	until grep -q "$2" "$1" 2>/dev/null; do
		tries=$((tries - 1))
		[[ $tries -gt 0 ]] || return 1
		sleep 0.1
	done
}

# shellcheck disable=SC2016
verbs='set -e
ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE
ibv_rc_pingpong -d rxe0 -g 1 -n 100 >/dev/null & server=$!
until ibv_rc_pingpong -d rxe0 -g 1 -n 100 192.168.77.1; do kill -0 $server; sleep 0.1; done
wait $server'
check() { boot 0 -- sh -c "$verbs" && grep -q '100 iters' "$work/out"; }
check && status=0 || status=1
result "$status" "two processes talk over rxe0"

# shellcheck disable=SC2016
check() {
	MWCTL_CHECK='a b' boot 7 -- sh -c 'pwd; echo "$MWCTL_CHECK"; echo err >&2; echo x >/dev/stderr; exit 7' &&
		[[ $(<"$work/out") == "$PWD"$'\n'"a b" && $(<"$work/err") == $'err\nx' ]]
}
check && status=0 || status=1
result "$status" "exit status, both outputs, working directory and environment pass"

check() { boot 0 -- sh -c 'sleep 1000 & seq 50000' && cmp -s "$work/out" <(seq 50000); }
check && status=0 || status=1
result "$status" "all output arrives, and a process left behind does not keep the guest up"

check() { boot 125 -- sh -c 'echo c >/proc/sysrq-trigger' && grep -q 'kernel.*panicked' "$work/err"; }
check && status=0 || status=1
result "$status" "a panic ends the guest with 125 and the kernel's words"

check() { boot 124 --time-limit 20 -- sleep 1000 && grep -q 'limit of 20 s' "$work/err"; }
check && status=0 || status=1
result "$status" "the time limit ends the guest with 124"

# interrupt SIGNAL STATUS: a background job would ignore INT, hence the detour over env.
interrupt() {
	local guest status=0 qemu
	env --default-signal=INT "$rxe" --kernel "$kernel" -- sh -c 'echo up; sleep 1000' >"$work/out" 2>"$work/err" &
	guest=$!
	wait_for "$work/out" up || return 1
	qemu=$(pgrep -f "qemu-system.*$TMPDIR/") || return 1
	kill "-$1" "$guest"
	wait "$guest" || status=$?
	[[ $status -eq $2 && -z $(ls -A "$TMPDIR") ]] || return 1
	for pid in $qemu; do
		[[ ! -e /proc/$pid ]] || return 1
	done
}
interrupt INT 130 && status=0 || status=1
result "$status" "an interrupt leaves no process and no folder"
interrupt TERM 143 && status=0 || status=1
result "$status" "a termination leaves no process and no folder"

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
