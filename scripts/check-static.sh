#!/bin/sh
# check-static.sh FILE...: fails unless every file is an ELF program that needs
# no loader and no shared library.
set -eu
command -v readelf >/dev/null || { echo "readelf is missing: install binutils" >&2; exit 1; }
for file; do
	headers=$(readelf -lW "$file" 2>/dev/null) || { echo "$file is not an ELF program" >&2; exit 1; }
	case $headers in
	*INTERP*) echo "$file is not static: it asks for a loader; link it with -static" >&2; exit 1 ;;
	esac
	if readelf -dW "$file" 2>/dev/null | grep -q NEEDED; then
		echo "$file is not static: it needs shared libraries; link it with -static" >&2
		exit 1
	fi
done
