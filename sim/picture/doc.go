// Package picture draws reports as web pages. Each page is one file that needs no network and no library. Its JavaScript
// only shows the values under the pointer.
//
// [HTML] draws one run, [SweepHTML] a sweep. Both check their input, draw into memory and write once. They may be
// called concurrently. A page is at most [MaxBytes] long, whatever the report says: long texts
// and long lists are shortened, and the page says so.
//
// What a scenario says is untrusted. It reaches the page through html/template only, and the page forbids itself, by a
// Content-Security-Policy, to load or run anything but its own style and script.
//
// A value that a report does not know (−1, NaN) is neither drawn nor printed as a number: lines have gaps there.
package picture
