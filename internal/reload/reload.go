// Package reload lets those that watch a configuration for a Group count its reloads in the Group's Stats: the policy file
// and the rate limit service. It is no part of the API, because a user's own code has its own figures.
package reload

// Count counts a reload of a *tiered.Group: nil says that it has the new configuration, any other error why it does not.
// Package tiered sets it.
var Count func(group any, err error)
