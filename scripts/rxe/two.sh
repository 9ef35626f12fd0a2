#!/usr/bin/env bash
# Runs a server and a client as two processes, in the guest of scripts/rxe.sh.
set -euo pipefail

usage() {
	cat <<'END'
usage: scripts/rxe/two.sh --one-device|--routed|--namespaces SERVER [ARG…] -- CLIENT [ARG…]

  --one-device   both on rxe0
  --routed       two rxe devices, one at each end of a veth pair; the kernel is made to send
                 over the pair what it would otherwise keep to itself
  --namespaces   the same, each device in a network namespace of its own, with its process.
                 77 where the kernel's rxe receives in the first namespace alone

In the ARGs @server@ and @client@ stand for the two addresses. The client starts once the
server listens by rdma_cm. Ends with 0 if both do, and packets went over the pair; else with
the status of the one that failed.
END
}

say() { printf 'two: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

how=${1:-}
case $how in
-h | --help) usage; exit 0 ;;
--one-device | --routed | --namespaces) shift ;;
*) usage >&2; exit 2 ;;
esac
[[ -e /run/rxe/command ]] || die 'this changes the network: run it in the guest, by scripts/rxe.sh'
PATH=$PATH:/usr/sbin:/sbin

server_address=192.168.78.1 client_address=192.168.78.2
if [[ $how == --one-device ]]; then
	server_address=192.168.77.1 client_address=192.168.77.1
fi
server=() client=()
while [[ $# -gt 0 && $1 != -- ]]; do
	server+=("${1//@server@/$server_address}")
	shift
done
while [[ $# -gt 1 ]]; do
	shift
	client+=("${1//@client@/$client_address}")
	client[-1]=${client[-1]//@server@/$server_address}
done
[[ ${#server[@]} -gt 0 && ${#client[@]} -gt 0 ]] || { usage >&2; exit 2; }

# Runs a command on the side $1, server or client.
on() {
	local side=$1
	shift
	if [[ $how == --namespaces ]]; then ip netns exec "$side" "$@"; else "$@"; fi
}

# A condition, tried every 50 ms for at most 10 s.
await() {
	local tries=200
	until "$@"; do
		tries=$((tries - 1))
		[[ $tries -gt 0 ]] || return 1
		sleep 0.05
	done
}

active() { on "$1" rdma link show "rxe_$1/1" | grep -q 'state ACTIVE'; }
has_gid() { grep -q '^0000:0000:0000:0000:0000:ffff:' "/sys/class/infiniband/rxe_$1/ports/1/gids/1"; }

# One end of the pair, already where it belongs, and its rxe device.
end_of_pair() {
	on "$1" ip address add "$2" dev "to_$3"
	on "$1" ip link set "to_$3" up
}

set_up() {
	local side
	ip link add to_client type veth peer name to_server
	if [[ $how == --namespaces ]]; then
		for side in server client; do ip netns add "$side"; done
		ip link set to_client netns server
		ip link set to_server netns client
	else
		# Both addresses are this kernel's own, so it would not send. Rules by source and
		# destination, which come before the table of its own addresses, make it; what has
		# come in over the pair goes to that table first.
		for side in to_client to_server; do
			echo 1 >/proc/sys/net/ipv4/conf/$side/accept_local
			echo 0 >/proc/sys/net/ipv4/conf/$side/rp_filter
			ip rule add pref 5 iif $side lookup local
		done
		echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
		ip rule add pref 10 from $server_address to $client_address lookup 101
		ip rule add pref 10 from $client_address to $server_address lookup 102
		ip rule add pref 20 lookup local
		ip rule delete pref 0
	fi
	end_of_pair server $server_address/30 client
	end_of_pair client $client_address/30 server
	if [[ $how == --routed ]]; then
		ip route add $client_address dev to_client src $server_address table 101
		ip route add $server_address dev to_server src $client_address table 102
	fi
	on server rdma link add rxe_server type rxe netdev to_client
	on client rdma link add rxe_client type rxe netdev to_server
	for side in server client; do
		await active $side && await has_gid $side || die "rxe_$side does not become ready"
	done
	# Port 4791: without a socket for it nothing is received.
	if [[ $how == --namespaces ]] && ! on server grep -q ':12B7 ' /proc/net/udp; then
		say "skipped: rxe of Linux $(uname -r) has no socket in other namespaces than the first"
		exit 77
	fi
}
[[ $how == --one-device || -e /sys/class/infiniband/rxe_server ]] || set_up

received() { on "$1" cat "/sys/class/net/$2/statistics/rx_packets"; }
before=0
[[ $how == --one-device ]] || before=$(received server to_client)

on server "${server[@]}" &
pid=$!
# shellcheck disable=SC2317
listens_or_ended() {
	[[ ! -e /proc/$pid ]] || on server rdma resource show cm_id | grep -q 'state LISTEN'
}
await listens_or_ended || say 'the server does not listen'
status=0 ended=0
if [[ ! -e /proc/$pid ]]; then
	wait "$pid" || ended=$?
	say "the server ended with $ended before it listened"
	exit $((ended ? ended : 1))
fi
on client "${client[@]}" || status=$?
# It would wait in vain for a client that failed.
[[ $status -eq 0 ]] || kill "$pid" 2>/dev/null || true
wait "$pid" || ended=$?
[[ $status -eq 0 && $ended -eq 0 ]] || say "the server ended with $ended, the client with $status"
[[ $status -ne 0 ]] || status=$ended
[[ $status -eq 0 ]] || exit $status
if [[ $how != --one-device ]]; then
	count=$(($(received server to_client) - before))
	[[ $count -gt 0 ]] || die 'no packet went over the pair'
	echo "$count packets over the pair to the server"
fi
