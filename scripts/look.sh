#!/bin/sh
# Looks at a web page of ours in chromium, light and dark, on a desk and on a phone, and takes a picture of each:
#
#	sh scripts/look.sh build/outage.html docs/images/report
#
# writes docs/images/report.png, report-dark.png, report-phone.png and report-phone-dark.png. It fails if something is
# cut off or hard to read, if a name in a chart lies on another, or if the page is wider than its screen. A third and a
# fourth argument are how many pixels from the top are shown on a desk and on a phone: all without them.
set -eu
page=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
out=$2
here=$(cd "$(dirname "$0")" && pwd)

for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
	if command -v $name >/dev/null; then
		break
	fi
done
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT

# chrome SCHEME WIDTH HEIGHT FLAG opens the page. Of the schemes, 0 is dark and 1 is light. The superuser has no sandbox.
# A page of a file may look into a frame of another file.
chrome() {
	case $1 in dark) scheme=0 ;; *) scheme=1 ;; esac
	$name --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile" \
		--allow-file-access-from-files --blink-settings=preferredColorScheme=$scheme \
		--window-size="$2,$3" "$4" "file://$here/look.html?w=$2&s=$1&p=file://$page" 2>"$profile/errors"
}

failed=0
for shot in light:1280: dark:1280:-dark light:390:-phone dark:390:-phone-dark; do
	scheme=${shot%%:*} rest=${shot#*:}
	width=${rest%%:*} file=$out${rest#*:}.png
	title=$(chrome "$scheme" "$width" 800 --dump-dom | sed -n 's/.*<title>height \(.*\)<\/title>.*/\1/p')
	height=${title%%;*}
	[ -n "$height" ] || { cat "$profile/errors" >&2; echo "$name did not open $page" >&2; exit 1; }
	if [ "$title" != "$height" ]; then
		echo "$file: ${title#*; }" >&2
		failed=1
	fi
	case $width in 390) most=${4:-$height} ;; *) most=${3:-$height} ;; esac
	[ "$height" -le "$most" ] || height=$most
	chrome "$scheme" "$width" "$height" "--screenshot=$file" >/dev/null
	echo "$file: $width x $height, $(wc -c <"$file") bytes"
done
exit $failed
