#!/usr/bin/env bash
# Puts a Debian kernel and the initramfs for it into the cache folder.
#
#   scripts/rxe/kernel.sh 6.1|6.12|backports      prints the folder with vmlinuz and initramfs
#
# backports: the newest that Debian backports to trixie, for what no release has yet.
#
# The kernel comes from Debian's archive through a private apt configuration: the machine's
# own sources, lists and packages stay as they are. A cached kernel is used for as long as
# it is there; remove the folder for a newer one.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${MWCTL_CACHE:-$(cd "$here/../.." && pwd)/.cache}/rxe
series=${1:?kernel series missing}

# In the order of insertion.
modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay ib_uverbs rdma_ucm rdma_rxe veth)

say() { printf 'rxe: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

case $series in
6.1) suite=bookworm ;;
6.12) suite=trixie ;;
backports) suite=trixie-backports ;;
*) die "no kernel $series: 6.1, 6.12 or backports" ;;
esac
# Without crc32_generic, rxe of these kernels cannot add its device.
[[ $series == backports ]] || modules=(crc32_generic crc32_pclmul "${modules[@]}")

# The mirrors of the archive (and, with "security", of its security updates) that the
# machine itself uses, so that a local one serves here as well.
mirror() {
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
		awk -v security="$1" '
			$1 ~ /\/debian-security\// && $2 ~ /-security$/ && security != "" && !found++ { print $1 }
			$1 ~ /\/debian\// && $2 !~ /-/ && security == "" && !found++ { print $1 }'
}

# Runs an apt command on the archive of $suite and nothing else.
private_apt() {
	local tool=$1 dir=$cache/apt-$suite
	shift
	"$tool" -q -o Dir::State="$dir/state" -o Dir::State::status="$dir/status" \
		-o Dir::Cache="$dir/cache" -o Dir::Etc::sourcelist="$dir/sources.list" \
		-o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferences=/dev/null \
		-o Dir::Etc::preferencesparts=/dev/null -o APT::Architecture=amd64 \
		-o APT::Architectures=amd64 -o APT::Sandbox::User=root \
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Check-Valid-Until=false "$@"
}

# What package $1 depends on, of the names that pattern $2 describes.
depends() {
	private_apt apt-cache depends "$1" | awk -v want="^($2)\$" '$1 == "Depends:" && $2 ~ want { print $2 }'
}

# Downloads the newest kernel of the suite into the folder $1.
download() {
	local dir=$cache/apt-$suite url security='' version='.*' package parts
	local from='deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
	url=${MWCTL_DEBIAN_MIRROR:-$(mirror '')}
	if [[ $series != backports ]]; then
		security=$(mirror security)
		version="${series/./[.]}[.].*"
	fi
	[[ -n $url ]] || die 'no Debian mirror among the apt sources: set MWCTL_DEBIAN_MIRROR'
	mkdir -p "$dir"/state/lists/partial "$dir"/cache/archives/partial
	: >"$dir/status"
	{
		echo "$from $url $suite main"
		[[ -z $security ]] || echo "$from $security $suite-security main"
	} >"$dir/sources.list"
	say "looking for Linux $series in Debian $suite"
	private_apt apt-get update >&2 || die "cannot read the package list of Debian $suite"
	# linux-image-amd64 depends on the newest kernel: linux-image-<version>-amd64. Newer ones come
	# in several packages.
	package=$(depends linux-image-amd64 "linux-image-$version" | head -n 1)
	[[ -n $package ]] || die "Debian $suite has no Linux $series for amd64"
	mapfile -t parts < <(depends "$package" 'linux-(base|binary|modules)-.*')
	(cd "$1" && private_apt apt-get download "$package" "${parts[@]}" >&2) || die "cannot download $package"
}

# Builds $2, the initramfs, from the unpacked kernel package in $1.
initramfs() {
	local root=$1 target=$2 tree=$work/initramfs version list number=100 path
	version=$(ls "$root/lib/modules")
	depmod -b "$root" "$version"
	mkdir -p "$tree"/{bin,dev,host,modules,new,overlay,proc,run,sys}
	cp "$(command -v busybox)" "$tree/bin/busybox"
	install -m 755 "$here/init" "$tree/init"
	# An empty configuration: the machine's own may blacklist or alias.
	mkdir "$work/no-config"
	list=$(for module in "${modules[@]}"; do
		modprobe -C "$work/no-config" -d "$root" -S "$version" --show-depends "$module" || exit
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }')
	for path in $list; do
		number=$((number + 1))
		case $path in
		*.ko) cp "$path" "$tree/modules/$number-${path##*/}" ;;
		*.ko.xz) xz -dc "$path" >"$tree/modules/$number-$(basename "$path" .xz)" ;;
		*) die "cannot unpack $path" ;;
		esac
	done
	(cd "$tree" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) | gzip -1 >"$target"
}

packages=$cache/packages-$series
mkdir -p "$packages"
exec 9>"$cache/lock-$series"
flock 9

# What goes into the initramfs names its folder: a changed init or list makes a new one.
recipe=$(cat "$here/init" "$here/kernel.sh" "$(command -v busybox)" | sha256sum | cut -c1-16)
ready=$cache/linux-$series-$recipe
if [[ ! -e $ready/initramfs ]]; then
	work=$(mktemp -d "$cache/work.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	if [[ -z $(find "$packages" -name '*.deb' -print -quit) ]]; then
		mkdir "$work/packages"
		download "$work/packages"
		mv "$work"/packages/*.deb "$packages"
	fi
	mkdir "$work/root" "$work/ready"
	for deb in "$packages"/*.deb; do
		dpkg -x "$deb" "$work/root"
	done
	[[ -e $work/root/lib ]] || ln -s usr/lib "$work/root/lib"
	say "building the initramfs for Linux $(ls "$work/root/lib/modules")"
	# Beside its modules, if it is not in /boot.
	cp "$(find "$work/root/boot" "$work/root/lib/modules/" -name 'vmlinuz*' -print -quit 2>/dev/null)" \
		"$work/ready/vmlinuz"
	initramfs "$work/root" "$work/ready/initramfs"
	# The folder appears whole or not at all; those of earlier recipes go, unless so young
	# that someone may be about to boot from one.
	rm -rf "$ready"
	mv "$work/ready" "$ready"
	find "$cache" -maxdepth 1 -name "linux-$series-*" -mmin +60 ! -path "$ready" -exec rm -rf {} +
fi
echo "$ready"
