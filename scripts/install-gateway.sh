#!/bin/sh
# Makes sure that there is the Envoy Gateway that the test of contrib/rls is made for: install-gateway.sh prints its path.
#
# Builds it with the Go toolchain from the module proxy, once: a quarter of an hour of processor time, 240 MB in the user's
# cache. GATEWAY_INSTALL=no forbids it.
set -eu
version=v1.9.1
file=${XDG_CACHE_HOME:-$HOME/.cache}/tiered-limiter/envoy-gateway-$version
if [ ! -x "$file" ]; then
	if [ "${GATEWAY_INSTALL:-yes}" = no ]; then
		echo "There is no $file, and GATEWAY_INSTALL=no forbids building it" >&2
		exit 1
	fi
	echo "There is no Envoy Gateway $version: building it, which takes several minutes (GATEWAY_INSTALL=no forbids this)" >&2
	mkdir -p "$(dirname "$file")"
	new=$(mktemp -d "$(dirname "$file")/new.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	(cd / && GOBIN="$new" GOFLAGS= go install "github.com/envoyproxy/gateway/cmd/envoy-gateway@$version") >&2
	mv "$new/envoy-gateway" "$file"
fi
echo "$file"
