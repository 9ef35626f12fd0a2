#!/usr/bin/env bash
# Runs a command on real verbs: boots a Debian kernel with soft-RoCE in QEMU.
set -euo pipefail

usage() {
	cat <<'END'
usage: scripts/rxe.sh [OPTION…] -- COMMAND [ARG…]
       scripts/rxe.sh --prepare

The guest's root is the host's, read-only under an overlay in memory: what is built here
runs there as it is, in the same working directory, and changes nothing here. It has one
RDMA device, rxe0, on the address 192.168.77.1 (RoCE v2 at GID index 1).

  --kernel 6.1|6.12   which kernel (6.1); backports: the newest one that Debian backports to trixie
  --cpus N            virtual CPUs (2)
  --memory M          memory in MiB (2048)
  --time-limit S      seconds until the guest is ended, its boot included (120)
  --console FILE      keep the kernel's messages in FILE
  --prepare           download and build what 6.1 and 6.12 need, run nothing

Two processes, on one device or two, with a namespace for each: scripts/rxe/two.sh, as COMMAND.

Standard output, standard error and the exit status are the command's; its standard input
is empty. 124: the limit was reached. 125: the kernel panicked, or the guest did not get to
the command. Of the environment, PATH, HOME, USER, LANG, LC_ALL, LD_LIBRARY_PATH, LD_PRELOAD,
*SAN_OPTIONS and everything starting with MWCTL_, IBV_, RDMAV_ or RUST_ is passed on.

MWCTL_CACHE           where kernels are kept (.cache in the project)
MWCTL_DEBIAN_MIRROR   where they come from (the mirror that apt uses)
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${MWCTL_CACHE:-$(dirname "$here")/.cache}/rxe

say() { printf 'rxe: %s\n' "$*" >&2; }
die() { say "$*"; exit 125; }
bad_usage() { say "$*"; usage >&2; exit 2; }

number() { [[ $2 =~ ^[1-9][0-9]*$ ]] || bad_usage "$1 wants a number, not '$2'"; }

kernel=6.1 cpus=2 memory=2048 limit=120 console='' prepare=no
while [[ $# -gt 0 ]]; do
	case $1 in
	--kernel | --cpus | --memory | --time-limit | --console)
		[[ $# -ge 2 ]] || bad_usage "$1 wants a value"
		case $1 in
		--kernel) kernel=$2 ;;
		--cpus) number "$1" "$2"; cpus=$2 ;;
		--memory) number "$1" "${2%M}"; memory=${2%M} ;;
		--time-limit) number "$1" "$2"; limit=$2 ;;
		--console) console=$2 ;;
		esac
		shift 2
		;;
	--prepare) prepare=yes; shift ;;
	-h | --help) usage; exit 0 ;;
	--) shift; break ;;
	*) bad_usage "unknown option $1 (the command comes after --)" ;;
	esac
done
[[ $kernel == 6.1 || $kernel == 6.12 || $kernel == backports ]] || bad_usage "no kernel $kernel: 6.1, 6.12 or backports"
[[ $prepare == yes || $# -gt 0 ]] || bad_usage 'no command'

# Installs the packages whose files are missing.
install_tools() {
	local missing=()
	command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
	# Debian's plain busybox is dynamic: of no use without libraries.
	{ command -v busybox >/dev/null && ! ldd "$(command -v busybox)" >/dev/null 2>&1; } || missing+=(busybox-static)
	command -v modprobe >/dev/null || missing+=(kmod)
	command -v cpio >/dev/null || missing+=(cpio)
	command -v xz >/dev/null || missing+=(xz-utils)
	command -v ip >/dev/null && command -v rdma >/dev/null || missing+=(iproute2)
	compgen -G '/usr/lib/*/libibverbs/librxe-*.so' >/dev/null || missing+=(ibverbs-providers)
	[[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || missing+=(debian-archive-keyring)
	[[ ${#missing[@]} -gt 0 ]] || return 0
	[[ $(id -u) -eq 0 ]] || die "missing: apt-get install ${missing[*]}"
	say "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2 ||
		{ apt-get update -qq >&2 && apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2; } ||
		die "cannot install ${missing[*]}"
}

PATH=$PATH:/usr/sbin:/sbin
install_tools
if [[ $prepare == yes ]]; then
	"$here/rxe/kernel.sh" 6.1 >/dev/null
	"$here/rxe/kernel.sh" 6.12 >/dev/null
	exit 0
fi
boot=$("$here/rxe/kernel.sh" "$kernel") || die "no kernel $kernel to boot"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/rxe.XXXXXX")
children=()
# shellcheck disable=SC2317
cleanup() {
	[[ ${#children[@]} -eq 0 ]] || kill "${children[@]}" 2>/dev/null || true
	wait
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# Boots the guest; $1 is the limit in seconds, $2 the accelerator, the rest goes to QEMU.
# timeout passes a TERM on and ends with QEMU; it gets one itself should this script be killed.
guest() {
	local seconds=$1 accel=$2
	shift 2
	exec setpriv --pdeathsig TERM timeout -k 2 "$seconds" qemu-system-x86_64 \
		-accel "$accel" -cpu max -no-user-config -nodefaults -display none -no-reboot \
		-kernel "$boot/vmlinuz" -initrd "$boot/initramfs" "$@" </dev/null
}

# /dev/kvm may exist and only spin: whether a guest gets to its init is asked once per boot
# of the machine.
accelerator() {
	local tcg=tcg,thread=multi answer
	[[ -r /dev/kvm && -w /dev/kvm ]] || { echo $tcg; return; }
	answer=$cache/accelerator-$(cat /proc/sys/kernel/random/boot_id)
	if [[ ! -s $answer ]]; then
		(guest 5 kvm -m 256 -serial "file:$tmp/probe" -append 'console=ttyS0 panic=-1 mwctl.probe') \
			>/dev/null 2>&1 &
		children=($!)
		wait $! || true
		children=()
		if grep -q 'rxe init: probe done' "$tmp/probe" 2>/dev/null; then echo kvm; else echo $tcg; fi >"$tmp/answer"
		rm -f "$cache"/accelerator-*
		mv "$tmp/answer" "$answer"
	fi
	cat "$answer"
}
accelerator >"$tmp/accelerator"

# What the guest runs: the caller's working directory, environment and command.
mkdir "$tmp/run"
{
	printf 'cd -- %q || exit 125\n' "$PWD"
	while read -r name; do
		case $name in
		PATH | HOME | USER | LANG | LC_ALL | LD_LIBRARY_PATH | LD_PRELOAD | *SAN_OPTIONS | \
			MWCTL_* | IBV_* | RDMAV_* | RUST_*) printf 'export %s=%q\n' "$name" "${!name}" ;;
		esac
	done < <(compgen -e)
	printf 'exec --'
	printf ' %q' "$@"
	printf '\n'
} >"$tmp/run/command"

mkfifo "$tmp/out" "$tmp/err"
cat "$tmp/out" &
children=($!)
cat "$tmp/err" >&2 &
children+=($!)
(guest "$limit" "$(cat "$tmp/accelerator")" -smp "$cpus" -m "$memory" \
	-virtfs "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap" \
	-virtfs "local,path=${tmp//,/,,}/run,mount_tag=run,security_model=none" \
	-device virtio-serial-pci \
	-chardev "file,id=out,path=${tmp//,/,,}/out" -device virtserialport,chardev=out,name=out \
	-chardev "file,id=err,path=${tmp//,/,,}/err" -device virtserialport,chardev=err,name=err \
	-serial "file:$tmp/console" \
	-append 'console=ttyS0 panic=-1 oops=panic maxcpus=1 no_timer_check' >"$tmp/qemu" 2>&1) &
qemu=$!
children+=("$qemu")
ended=0
wait "$qemu" || ended=$?
# The readers see the end of their pipes, unless QEMU never got to open them.
if [[ -e $tmp/console ]]; then wait; else kill "${children[@]}" 2>/dev/null || true; fi
children=()

[[ -z $console ]] || cp "$tmp/console" "$console"
last_lines() {
	cat "$tmp/qemu" >&2
	say "the kernel's last lines:"
	tail -n 30 "$tmp/console" 2>/dev/null | tr -d '\r' >&2
}
if grep -q 'Kernel panic' "$tmp/console" 2>/dev/null; then
	say "the guest's kernel $kernel panicked"
	last_lines
	exit 125
fi
# 137: QEMU did not even heed the TERM.
if [[ $ended -eq 124 || $ended -eq 137 ]]; then
	say "the limit of $limit s was reached, the guest was ended"
	last_lines
	exit 124
fi
read -r what value <"$tmp/run/status" 2>/dev/null || what=none
case $what in
exit) exit "$value" ;;
trouble) say "the guest did not get to the command: $value" ;;
*) say "the guest ended without a word (QEMU: exit status $ended)" ;;
esac
last_lines
exit 125
