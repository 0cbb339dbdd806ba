#!/bin/sh
# Installs Kombi, or upgrades it: https://github.com/kombi-k8s/kombi
#
#   sudo ./install.sh                      from a checkout: builds and installs
#   curl -sfL <url>/install.sh | sudo sh -    a release
#   ... | sudo sh -s - server --disable dns   with a command and flags
#
# A second run is an upgrade: configuration, data and pods stay, and flags stay
# unless new ones are given.
#
# Environment, each also under the name INSTALL_K3S_... has in k3s:
#   KOMBI_*                  configuration; kept in the service's environment file
#   INSTALL_KOMBI_BIN        install this kombi file; build and download nothing
#   INSTALL_KOMBI_URL        folder of a release (kombi and SHA256SUMS) to download
#   INSTALL_KOMBI_EXEC       command and flags; default: server, or agent when
#                            KOMBI_SERVER is set
#   INSTALL_KOMBI_NAME       service kombi-NAME instead of kombi or kombi-agent
#   INSTALL_KOMBI_TYPE       Type= of the systemd unit; default: notify
#   INSTALL_KOMBI_BIN_DIR    default: /usr/local/bin
#   INSTALL_KOMBI_SYSTEMD_DIR   default: /etc/systemd/system
#   INSTALL_KOMBI_SKIP_START    true: install, do not start
#   INSTALL_KOMBI_SKIP_ENABLE   true: install, neither start nor enable at boot
#   INSTALL_KOMBI_TIMEOUT    seconds to wait until the node is ready; default: 300
#
# Exit status: 0 when the node is ready (or was not to be started).
set -eu

RELEASES=https://github.com/kombi-k8s/kombi/releases/latest/download

say() { printf '%s\n' "$*"; }
fail() {
	printf 'install.sh: %s\n' "$*" >&2
	exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

# ---- what is to be done

settings() {
	[ "$(uname -s)" = Linux ] || fail "Kombi runs on Linux, and this is $(uname -s): use a Linux machine"
	case $(uname -m) in
	x86_64 | amd64) suffix='' ;;
	aarch64 | arm64) suffix=-arm64 ;;
	*) fail "there is no Kombi for $(uname -m): use an x86_64 or aarch64 machine" ;;
	esac
	[ "$(id -u)" = 0 ] || fail "installing needs root: run it again with sudo"

	bin_dir=${INSTALL_KOMBI_BIN_DIR:-/usr/local/bin}
	systemd_dir=${INSTALL_KOMBI_SYSTEMD_DIR:-/etc/systemd/system}
	skip_enable=${INSTALL_KOMBI_SKIP_ENABLE:-false}
	skip_start=${INSTALL_KOMBI_SKIP_START:-$skip_enable}
	[ "$skip_enable" != true ] || skip_start=true
	timeout=${INSTALL_KOMBI_TIMEOUT:-300}
	type=${INSTALL_KOMBI_TYPE:-notify}
	case $timeout in '' | *[!0-9]*) fail "INSTALL_KOMBI_TIMEOUT is \"$timeout\": give a number of seconds" ;; esac

	# Without new ones, an upgrade keeps the command and the flags.
	keep_command=false
	# shellcheck disable=SC2086 # a command line is to be split
	[ $# -gt 0 ] || set -- ${INSTALL_KOMBI_EXEC:-}
	if [ $# -eq 0 ]; then
		keep_command=true
	fi
	case ${1:-} in
	'' | -*)
		if [ -n "${KOMBI_SERVER:-}" ]; then
			set -- agent "$@"
		else
			set -- server "$@"
		fi
		;;
	esac
	role=$1
	case $role in
	server | agent) ;;
	*) fail "\"$role\" is not a command that runs as a service: give server or agent" ;;
	esac
	if [ -n "${INSTALL_KOMBI_NAME:-}" ]; then
		name=kombi-$INSTALL_KOMBI_NAME
	elif [ "$role" = agent ]; then
		name=kombi-agent
	else
		name=kombi
	fi
	case $name in *[!a-zA-Z0-9_.-]*) fail "INSTALL_KOMBI_NAME may have letters, digits, dots, dashes and underscores only" ;; esac
	# The command line in the three forms in which it is needed.
	exec_systemd='' exec_shell='' exec_lines=''
	for arg; do
		case $arg in *"
"*) fail "an argument has more than one line: put such a value in /etc/kombi/config.yaml" ;; esac
		quoted=$(printf '%s' "$arg" | sed "s/'/'\\\\''/g")
		case $arg in
		*[!a-zA-Z0-9_.,:/=@+-]* | '') word="'$quoted'" ;;
		*) word=$arg ;;
		esac
		exec_shell="$exec_shell $word"
		exec_systemd="$exec_systemd $(printf '%s' "$word" | sed 's/%/%%/g; s/\$/$$/g')"
		exec_lines="$exec_lines$arg
"
	done
	exec_shell=${exec_shell# } exec_systemd=${exec_systemd# }

	# What runs, or, in an image that is being built, what is installed.
	init=supervise
	if [ -d /run/systemd/system ]; then
		init=systemd
	elif [ -d /run/openrc ]; then
		init=openrc
	elif [ "$skip_start" = true ] && has systemctl; then
		init=systemd
	elif [ "$skip_start" = true ] && has openrc-run; then
		init=openrc
	fi
	case $init in
	systemd)
		service_file=$systemd_dir/$name.service
		env_file=$service_file.env
		;;
	openrc)
		service_file=/etc/init.d/$name
		env_file=/etc/conf.d/$name
		;;
	supervise)
		service_file=/etc/kombi/supervise/$name.args
		env_file=/etc/kombi/supervise/$name.env
		;;
	esac
	log=/var/log/$name.log
	upgrade=false
	[ ! -e "$service_file" ] || upgrade=true
	# Where status looks: the same data directory as the service.
	if [ "$keep_command" = true ] && [ "$upgrade" = true ]; then
		place=$(kept_arguments | flag_values)
	else
		place=$(printf '%s' "$exec_lines" | flag_values)
	fi
	data_dir=$(printf '%s\n' "$place" | sed -n -e 's/^--data-dir=//p' -e '/^--data-dir$/{n;p;}' -e '/^-d$/{n;p;}' | tail -n 1)
}

# kept_arguments prints the arguments in the service's file, one on each line.
kept_arguments() {
	case $init in
	systemd) line=$(sed -n 's/^ExecStart=//p' "$service_file" | sed 's/%%/%/g; s/\$\$/$/g') ;;
	openrc) line=$(sed -n 's/^command_args="\(.*\)"$/\1/p' "$service_file" | sed 's/\\\(.\)/\1/g') ;;
	supervise)
		cat "$service_file"
		return
		;;
	esac
	eval "printf '%s\\n' $line"
}

# flag_values reads arguments, one on each line, and prints those that say where
# this Kombi keeps its things.
flag_values() {
	sed -n -e '/^--\(data-dir\|run-dir\|config\)$/{p;n;p;}' -e '/^-[dc]$/{p;n;p;}' -e '/^--\(data-dir\|run-dir\|config\)=/p'
}

# kombi runs the file $1 with a command, in the service's environment.
kombi() {
	(
		if [ -f "$env_file" ]; then
			set -a
			# shellcheck disable=SC1090 # written below
			. "$env_file"
			set +a
		fi
		[ -z "$data_dir" ] || export KOMBI_DATA_DIR="$data_dir"
		exec "$@"
	)
}

# status waits for $1 until Kombi is ready.
status() {
	set -f
	IFS='
'
	# shellcheck disable=SC2086 # one word on each line
	set -- --wait "$1" $place
	unset IFS
	set +f
	kombi "$bin_dir/kombi" status "$@"
}

# ---- the file

# Everything is prepared beside its place and moved there at the end.
cleanup() {
	status=$?
	[ -z "${work:-}" ] || rm -rf "$work"
	[ -z "${staged:-}" ] || rm -f "$staged"
	exit $status
}

fetch() { # fetch URL FILE
	if has curl; then
		if [ -t 2 ]; then
			curl -fL --retry 3 --progress-bar -o "$2" "$1"
		else
			curl -fsSL --retry 3 -o "$2" "$1"
		fi
	elif has wget; then
		wget -q -O "$2" "$1"
	else
		fail "downloading needs curl or wget: install one of them, or name a file with INSTALL_KOMBI_BIN"
	fi || fail "$1 cannot be downloaded: check the address and the network, or name a file with INSTALL_KOMBI_BIN"
}

checkout() { # prints the folder of the checkout that this script is in
	case $0 in
	*install.sh) ;;
	*) return 1 ;;
	esac
	dir=$(cd "$(dirname "$0")" && pwd) || return 1
	[ -f "$dir/go.mod" ] && [ -f "$dir/Makefile" ] && [ -d "$dir/cmd/kombi" ] && echo "$dir"
}

build() { # build FOLDER
	PATH=$PATH:/usr/local/go/bin
	export PATH
	say "building in $1 (ten minutes the first time, seconds later)"
	"$1/scripts/deps.sh" build || fail "the build's packages are not installed: see the message above"
	make -C "$1" --no-print-directory dist/kombi || fail "the build failed: see the messages above"
	# Under sudo the checkout is somebody's: they must be able to build again.
	owner=$(stat -c %u:%g "$1")
	[ "$owner" = 0:0 ] || chown -R "$owner" "$1/build" "$1/dist"
}

obtain() {
	mkdir -p "$bin_dir" || fail "$bin_dir cannot be made: set INSTALL_KOMBI_BIN_DIR to a folder that can"
	work=$(mktemp -d) || fail "there is no room for temporary files: free some, or set TMPDIR"
	staged=$bin_dir/.kombi.$$
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP

	if [ -n "${INSTALL_KOMBI_BIN:-}" ]; then
		[ -f "$INSTALL_KOMBI_BIN" ] || fail "INSTALL_KOMBI_BIN names $INSTALL_KOMBI_BIN, which is not a file: give the path of a kombi file"
		source=$INSTALL_KOMBI_BIN
	elif [ -z "${INSTALL_KOMBI_URL:-}" ] && source=$(checkout); then
		build "$source"
		source=$source/dist/kombi
	else
		url=${INSTALL_KOMBI_URL:-$RELEASES}
		url=${url%/}
		say "downloading kombi from $url"
		fetch "$url/SHA256SUMS" "$work/SHA256SUMS"
		fetch "$url/kombi$suffix" "$work/kombi$suffix"
		want=$(sed -n "s/^\([0-9a-f]\{64\}\)[ *]*kombi$suffix\$/\1/p" "$work/SHA256SUMS")
		got=$(sha256sum "$work/kombi$suffix" | cut -d' ' -f1)
		[ "$want" = "$got" ] || fail "the downloaded file does not have the checksum in SHA256SUMS: try again, and if it stays so, do not use this address"
		source=$work/kombi$suffix
	fi
	cp "$source" "$staged" 2>"$work/error" || fail "the file cannot be put into $bin_dir ($(tail -n 1 "$work/error")): free some space or set INSTALL_KOMBI_BIN_DIR"
	chmod 0755 "$staged"
	# This also unpacks it, while an older Kombi still runs.
	new=$(kombi "$staged" version 2>"$work/error" </dev/null | head -n 1) || true
	new=${new#kombi }
	[ -n "$new" ] || fail "this kombi file does not run here: $(tail -n 1 "$work/error" | sed 's/^kombi: //')"
}

# ---- the service

unit() {
	cat <<UNIT
[Unit]
Description=Kombi: Kubernetes in one file ($role)
Documentation=https://github.com/kombi-k8s/kombi
Wants=network-online.target
After=network-online.target

[Service]
Type=$type
NotifyAccess=all
EnvironmentFile=-$env_file
ExecStartPre=-/sbin/modprobe overlay
ExecStart=$1
# Pods go on when Kombi stops or restarts; "kombi stop --pods" ends them.
KillMode=process
Delegate=yes
WatchdogSec=60s
TimeoutStartSec=0
TimeoutStopSec=90s
# It ends with status 0 only when it is told to: "kombi stop" is final.
Restart=on-failure
RestartSec=5s
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
UNIT
}

openrc_script() {
	cat <<SCRIPT
#!/sbin/openrc-run

description="Kombi: Kubernetes in one file ($role)"
supervisor=supervise-daemon
command="$bin_dir/kombi"
command_args="$1"
output_log="$log"
error_log="$log"
respawn_delay=5
respawn_max=0
rc_ulimit="-n 1048576"
# Pods go on when Kombi stops or restarts; "kombi stop --pods" ends them.
rc_cgroup_cleanup=no

depend() {
	want cgroups
	after network-online net
}
SCRIPT
}

# environment prints what the service's environment file is to hold: what it
# held, with the KOMBI_ and proxy variables of this call over it.
environment() {
	names=$(env | sed -n 's/^\(KOMBI_[A-Za-z0-9_]*\|[a-z]*_proxy\|[A-Z]*_PROXY\)=.*/\1/p' | grep -v -x -e KOMBI_BIN_DIR -e KOMBI_LAUNCHER | sort)
	if [ -f "$env_file" ]; then
		while IFS= read -r line; do
			known=${line#export }
			known=${known%%=*}
			case "
$names
" in *"
$known
"*) ;;
			*) printf '%s\n' "$line" ;;
			esac
		done <"$env_file"
	fi
	prefix=''
	[ "$init" != openrc ] || prefix='export '
	for variable in $names; do
		eval "value=\$$variable"
		case $value in *"
"*) fail "$variable has more than one line: put it in /etc/kombi/config.yaml" ;; esac
		# shellcheck disable=SC2016 # no expansion wanted
		printf '%s%s="%s"\n' "$prefix" "$variable" "$(printf '%s' "$value" | sed 's/[\\"$`]/\\&/g')"
	done
}

# put moves the prepared file $1 to $2 with mode $3, and notes when it changes.
put() {
	if cmp -s "$1" "$2"; then
		chmod "$3" "$2"
		return
	fi
	changed=true
	mkdir -p "$(dirname "$2")" && cp "$1" "$2.new.$$" && chmod "$3" "$2.new.$$" && mv "$2.new.$$" "$2" && return
	rm -f "$2.new.$$"
	fail "$2 cannot be written: free some space, or make its folder writable"
}

install_files() {
	changed=false
	umask 077
	case $init in
	systemd)
		command="$bin_dir/kombi $exec_systemd"
		if [ "$keep_command" = true ] && [ "$upgrade" = true ]; then
			command=$(sed -n 's/^ExecStart=//p' "$service_file")
		fi
		unit "$command" >"$work/service"
		mode=0644
		;;
	openrc)
		command=$(printf '%s' "$exec_shell" | sed 's/[\\"$`]/\\&/g')
		if [ "$keep_command" = true ] && [ "$upgrade" = true ]; then
			command=$(sed -n 's/^command_args="\(.*\)"$/\1/p' "$service_file")
		fi
		openrc_script "$command" >"$work/service"
		mode=0755
		;;
	supervise)
		if [ "$keep_command" = true ] && [ "$upgrade" = true ]; then
			cp "$service_file" "$work/service"
		else
			printf '%s\n%s' "$bin_dir/kombi" "$exec_lines" >"$work/service"
		fi
		mode=0600
		;;
	esac
	environment >"$work/env" || exit 1
	umask 022

	put "$work/service" "$service_file" "$mode"
	put "$work/env" "$env_file" 0600
	if cmp -s "$staged" "$bin_dir/kombi"; then
		rm -f "$staged"
	else
		changed=true
		mv "$staged" "$bin_dir/kombi" || fail "$bin_dir/kombi cannot be replaced: make the folder writable"
	fi
	staged=''
	for tool in kubectl ctr crictl; do
		if [ -L "$bin_dir/$tool" ] && [ "$(readlink "$bin_dir/$tool")" = kombi ]; then
			continue
		fi
		other=$(command -v "$tool" 2>/dev/null || true)
		if [ -n "$other" ] || [ -e "$bin_dir/$tool" ]; then
			say "kept ${other:-$bin_dir/$tool}; Kombi's own is: kombi $tool"
		else
			ln -s kombi "$bin_dir/$tool"
		fi
	done
	if [ "$upgrade" = true ]; then
		say "upgraded $bin_dir/kombi: $new"
	else
		say "installed $bin_dir/kombi: $new"
	fi
}

service_running() {
	case $init in
	systemd) systemctl is-active --quiet "$name.service" ;;
	openrc) rc-service "$name" status >/dev/null 2>&1 ;;
	supervise) "$bin_dir/kombi" supervise status --name "$name" >/dev/null 2>&1 ;;
	esac
}

enable_service() {
	case $init in
	systemd)
		[ ! -d /run/systemd/system ] || systemctl daemon-reload >"$work/error" 2>&1 || fail "systemd does not read the new unit ($(tail -n 1 "$work/error")): look at $service_file"
		[ "$skip_enable" = true ] || systemctl enable "$name.service" >"$work/error" 2>&1 || fail "the service cannot be enabled ($(tail -n 1 "$work/error")): run systemctl enable $name"
		;;
	openrc)
		[ "$skip_enable" = true ] || rc-update add "$name" default >"$work/error" 2>&1 || fail "the service cannot be enabled ($(tail -n 1 "$work/error")): run rc-update add $name default"
		;;
	esac
}

start_service() {
	case $init in
	systemd)
		systemctl stop "$name.service" >"$work/error" 2>&1 &&
			systemctl start --no-block "$name.service" >"$work/error" 2>&1
		;;
	openrc)
		rc-service --ifstarted "$name" stop >"$work/error" 2>&1
		rc-service "$name" start >"$work/error" 2>&1
		;;
	supervise)
		"$bin_dir/kombi" supervise restart --name "$name" >"$work/error" 2>&1
		;;
	esac || fail "the service does not start ($(tail -n 1 "$work/error" | sed 's/^kombi: //')): look at its log with: $(log_command)"
}

log_command() {
	if [ "$init" = systemd ]; then
		echo "journalctl -u $name"
	else
		echo "tail $log"
	fi
}

# last_error prints why Kombi ended, as it said itself.
last_error() {
	if [ "$init" = systemd ]; then
		journalctl -u "$name.service" -o cat -n 200 --no-pager 2>/dev/null
	else
		tail -n 200 "$log" 2>/dev/null
	fi | sed -n 's/^kombi: //p' | tail -n 1
}

restarts() {
	case $init in
	systemd) systemctl show -p NRestarts "$name.service" 2>/dev/null | sed 's/.*=//' ;;
	openrc) tail -n "+$((log_start + 1))" "$log" 2>/dev/null | grep -c '^kombi: ' || true ;;
	supervise) tail -n "+$((log_start + 1))" "$log" 2>/dev/null | grep -c ' supervise: .*; starting it again' || true ;;
	esac
}

wait_ready() {
	began=$(date +%s)
	problem=''
	while :; do
		if status 2s >"$work/status" 2>"$work/error" </dev/null; then
			break
		fi
		spent=$(($(date +%s) - began))
		[ ! -t 1 ] || printf '\r\033[Kwaiting until the node is ready, %ss' "$spent"
		times=$(restarts)
		if [ "${times:-0}" -ge 3 ]; then
			[ ! -t 1 ] || printf '\r\033[K'
			problem=$(last_error)
			fail "Kombi is installed, but it ended ${times} times: ${problem:-look at its log with: $(log_command)}"
		fi
		if [ "$spent" -ge "$timeout" ]; then
			[ ! -t 1 ] || printf '\r\033[K'
			problem=$(tail -n 1 "$work/error" | sed 's/^kombi: //')
			fail "Kombi is installed, but the node is not ready after ${timeout}s (${problem:-no reason given}): look at: kombi status"
		fi
		# status returns at once while nothing listens yet.
		[ $(($(date +%s) - began)) -gt "$spent" ] || sleep 1
	done
	[ ! -t 1 ] || printf '\r\033[K'
	say "the node is ready after $(($(date +%s) - began))s"
}

main() {
	settings "$@"
	obtain
	install_files
	enable_service
	if [ "$skip_start" = true ]; then
		case $init in
		systemd) say "next: systemctl start $name" ;;
		openrc) say "next: rc-service $name start" ;;
		supervise) say "next: kombi supervise start --name $name" ;;
		esac
		return
	fi
	log_start=0
	[ ! -f "$log" ] || log_start=$(wc -l <"$log")
	if [ "$changed" = false ] && service_running; then
		say "nothing changed: the running Kombi goes on"
	else
		start_service
	fi
	wait_ready
	if [ "$init" = supervise ]; then
		say "there is no systemd or OpenRC: after a restart of this machine run: kombi supervise start --name $name"
	fi
	if [ "$role" = server ]; then
		say "next: sudo kombi kubectl get nodes"
	else
		say "next, on a server: sudo kombi kubectl get nodes"
	fi
}

# The last line, so that a download that was cut off does nothing.
main "$@"
