#!/bin/sh
# Puts into a folder what the Dockerfile of the rate limit service puts into its image: image-layout.sh FOLDER.
#
# Does what its lines RUN and COPY --from=build say, so it needs neither Docker nor a registry.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
(cd "$root" && sh -euc "$(sed -n 's/^RUN //p' contrib/rls/Dockerfile | sed "s| /out/| $stage/out/|g")")
sed -n 's/^COPY --from=build //p' "$root/contrib/rls/Dockerfile" | while read -r from to; do
	mkdir -p "$(dirname "$folder$to")"
	cp "$stage$from" "$folder$to"
done
