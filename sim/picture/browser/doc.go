// Package browser looks at the pages of package picture in a real browser: that their charts are drawn, that their text can be
// read on a screen of 360 pixels and in the dark, that the values under the pointer are right, and that nothing is fetched.
// It is a module of its own, so that nobody else needs what drives a browser.
//
// `make pages PAGE=browser` runs it and installs chromium when there is none. `make pages PAGE=images` writes the pictures of the
// documents.
package browser
