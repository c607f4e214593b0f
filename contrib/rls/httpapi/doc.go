// Package httpapi serves the limits of a Group by HTTP and JSON, for programs in other languages
// than Go.
//
//	http.Handle("/v1/", must(httpapi.New(group, nil)))
//
// A program asks before it does something, and goes on if the status is 200:
//
//	POST /v1/allow    take the tokens that a request needs
//	POST /v1/reserve  the same, and name them, so that their number can be corrected
//	POST /v1/settle   correct the tokens of a reservation
//	GET  /v1/openapi.yaml
//
// openapi.yaml describes the API.
package httpapi
