#!/usr/bin/env bash
# Runs the examples that are a server with its clients, in the guest of scripts/rxe.sh: in one
# process, as two on one device, and as two on two devices.
#
#   scripts/rxe/examples.sh --routed|--namespaces DIR      how the two devices are: see two.sh
set -uo pipefail

how=${1:?usage: examples.sh --routed|--namespaces DIR} dir=${2:?no folder with the programs}
two=$(dirname "${BASH_SOURCE[0]}")/two.sh
passed=0 failed=0 skipped=0

# run NAME COMMAND [ARG…]
run() {
	local name=$1 status=0
	shift
	echo "== $name"
	"$@" || status=$?
	case $status in
	0) passed=$((passed + 1)) ;;
	77) skipped=$((skipped + 1)) ;;
	*)
		failed=$((failed + 1))
		echo "FAILED $name (exit status $status)"
		;;
	esac
}

for name in kv_server replicated_log; do
	program=$dir/$name
	run "$name" "$program"
	for devices in --one-device "$how"; do
		run "$name $devices" "$two" $devices "$program" --listen @server@ -- \
			"$program" --connect @server@ --from @client@
	done
done
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 && $passed -gt 0 ]]
