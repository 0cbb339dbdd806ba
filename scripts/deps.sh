#!/bin/sh
# deps.sh build|generate|test: installs the packages that a step needs and this
# machine lacks. Without root, or without a known package manager, it prints
# what to install instead, and fails. It asks no package manager when nothing
# is missing.
set -eu
step=${1:?build, generate or test}

has() { command -v "$1" >/dev/null 2>&1; }
# A header and a static library, wherever this distribution keeps them.
links() { printf '%s\nint main(void){return 0;}\n' "$1" | "${CC:-gcc}" -x c - -static -o /dev/null $2 2>/dev/null; }

if ! has go; then
	echo "Go is missing: install Go $(sed -n 's/^go //p' "$(dirname "$0")/../go.mod") or newer from https://go.dev/dl/ and put it in PATH" >&2
	exit 1
fi

need=''
want() { need="$need $1"; }
case $step in
build)
	has gcc || want gcc
	has make || want make
	has zstd || want zstd
	has git || want git
	has readelf || want binutils
	has cmp || want diffutils
	{ has gcc && links '#include <stdlib.h>' ''; } || want libc
	{ has gcc && links '#include <seccomp.h>' -lseccomp; } || want seccomp
	has pkg-config || want pkgconf
	;;
generate)
	has clang || want clang
	has llvm-strip || want llvm
	[ -e /usr/include/bpf/bpf_helpers.h ] || want libbpf
	;;
test)
	has ip || want iproute2
	has nsenter || want util-linux
	has ps || want procps
	has busybox || want busybox
	has curl || want curl
	has mkfs.ext4 || want e2fsprogs
	has iptables || want iptables
	;;
*)
	echo "deps.sh: $step is not one of build, generate, test" >&2
	exit 2
	;;
esac
[ -n "$need" ] || exit 0

# What each of them is called, for each family of distributions.
manager='' packages=''
for candidate in apt-get dnf apk zypper pacman; do
	if has "$candidate"; then
		manager=$candidate
		break
	fi
done
for thing in $need; do
	case $manager:$thing in
	apt-get:libc) name=libc6-dev ;;
	apt-get:seccomp) name=libseccomp-dev ;;
	apt-get:pkgconf) name=pkg-config ;;
	apt-get:busybox) name=busybox-static ;;
	apt-get:libbpf) name=libbpf-dev ;;
	dnf:libc | zypper:libc) name=glibc-static ;;
	dnf:seccomp) name='libseccomp-devel libseccomp-static' ;;
	dnf:iproute2) name=iproute ;;
	dnf:procps) name=procps-ng ;;
	dnf:libbpf) name=libbpf-devel ;;
	zypper:seccomp) name=libseccomp-devel ;;
	zypper:libbpf) name=libbpf-devel ;;
	zypper:busybox) name=busybox-static ;;
	apk:libc) name='musl-dev linux-headers' ;;
	apk:seccomp) name='libseccomp-dev libseccomp-static' ;;
	apk:busybox) name=busybox-static ;;
	apk:libbpf) name=libbpf-dev ;;
	pacman:libc) name=glibc ;;
	pacman:seccomp) name=libseccomp ;;
	pacman:procps) name=procps-ng ;;
	*) name=$thing ;;
	esac
	packages="$packages $name"
done
packages=${packages# }

case $manager in
apt-get) command="apt-get install -y --no-install-recommends $packages" ;;
dnf) command="dnf install -y $packages" ;;
apk) command="apk add --no-cache $packages" ;;
zypper) command="zypper --non-interactive install $packages" ;;
pacman) command="pacman -S --noconfirm --needed $packages" ;;
*)
	echo "these are missing, and this machine has no package manager that Kombi knows: install$need" >&2
	exit 1
	;;
esac
if [ "$(id -u)" != 0 ]; then
	echo "these packages are missing; install them with: sudo $command" >&2
	exit 1
fi

echo "installing $packages"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [ "$manager" = apt-get ]; then
	export DEBIAN_FRONTEND=noninteractive
	command="apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $packages"
	apt-get -o DPkg::Lock::Timeout=300 update >"$log" 2>&1 || true # old lists may do
fi
if ! $command >>"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "installing $packages failed: see above, then run it by hand: $command" >&2
	exit 1
fi
